// The planner: catalog, skeleton, layout, mapping and policy in; a plan, or every reason why not, out.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/catalog.h"
#include "lading/result.h"
#include "layout/layout.h"
#include "mapping/mapping.h"
#include "model/skeleton.h"
#include "planner/plan_types.h"
#include "policy/policy.h"

namespace lading::planner {

struct PlanInputs {
  const checkpoint::Catalog& catalog;
  const model::Skeleton& skeleton;
  const layout::Layout& layout;
  const mapping::Mapping& mapping;
  const policy::Policy& policy;
  /// The skeleton is a part of a model: its other parts may take the scales of this one's payloads (R48).
  bool is_part_of_model = false;
  /// By the catalog's files: it is in the page cache. Shapes the reads (Plan::read_limits); none listed: no file is.
  std::vector<bool> is_cached = {};
};

/// The verdict covers all ranks; `ranks` are the ones whose transfers are worked out. Deterministic: the
/// same inputs give the same plan, byte for byte.
Result<Plan, Errors> make_plan(const PlanInputs& inputs, const std::vector<std::uint64_t>& ranks);

/// The checkpoint itself as the model: every key a parameter of its own name, shape and dtype.
Result<model::Skeleton, Errors> skeleton_of(const checkpoint::Catalog& catalog);

}  // namespace lading::planner
