// What stands behind a SavePlanHandle.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lading/save.h"
#include "plan/save/save_plan.h"

namespace lading {

struct PlannedSave {
  plan::SavePlan plan;
  std::vector<std::uint32_t> ranks;                           ///< into its ranks: those of this process
  std::map<std::string, std::string, std::less<>> kept = {};  ///< names of tensors, and their keys of the base
  std::optional<PlanReport> kept_load = {};                   ///< of those that these ranks have, by key

  static SavePlanHandle handle(PlannedSave planned) {
    return SavePlanHandle(std::make_shared<const PlannedSave>(std::move(planned)));
  }
  static bool is_behind(const SavePlanReport& report) { return report.handle.planned_ != nullptr; }
  /// Of a report that plan_save() made.
  static const PlannedSave& of(const SavePlanReport& report) {
    LADING_CHECK(report.handle.planned_ != nullptr);
    return *report.handle.planned_;
  }
};

inline Error not_a_planned_save() {
  return Error(Code::kUsage, "the report was not made by plan_save()")
      .try_this("Pass the report that plan_save() returned.");
}

}  // namespace lading
