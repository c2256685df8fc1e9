// What stands behind a PlanHandle.
#pragma once

#include <memory>
#include <utility>

#include "api/skeleton_values.h"
#include "lading/plan.h"
#include "plan/plan.h"
#include "source/checkpoint_source.h"

namespace lading {

struct Planned {
  plan::Plan plan;
  source::CheckpointSource source;
  SkeletonValues values;

  static PlanHandle handle(Planned planned) { return PlanHandle(std::make_shared<const Planned>(std::move(planned))); }
  static bool is_behind(const PlanReport& report) { return report.handle.planned_ != nullptr; }
  /// Of a report that make_plan() made.
  static const Planned& of(const PlanReport& report) {
    LADING_CHECK(report.handle.planned_ != nullptr);
    return *report.handle.planned_;
  }
};

inline Error not_planned() {
  return Error(Code::kUsage, "the report was not made by make_plan()")
      .try_this("Pass the report that make_plan() returned.");
}

}  // namespace lading
