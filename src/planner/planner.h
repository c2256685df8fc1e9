// The planner: catalog, skeleton, layout, mapping and policy in; a plan, or every reason why not, out.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/catalog.h"
#include "lading/result.h"
#include "layout/layout.h"
#include "mapping/mapping.h"
#include "model/skeleton.h"
#include "planner/plan_types.h"
#include "policy/policy.h"

namespace lading::planner {

/// Which tensor of the model a key of an adapter is, by name. A key that is not here is the tensor of its own name.
struct AdapterNames {
  std::map<std::string, std::string, std::less<>> names;
  std::string path;  ///< of the adapter's files, for messages
};

struct PlanInputs {
  const checkpoint::Catalog& catalog;  ///< the base checkpoint's, and behind it those of `adapters`
  const model::Skeleton& skeleton;
  const layout::Layout& layout;
  const mapping::Mapping& mapping;
  const policy::Policy& policy;
  /// The skeleton is a part of a model: its other parts may take the scales of this one's payloads (R48).
  bool is_part_of_model = false;
  /// By the catalog's files: it is in the page cache. Shapes the reads (Plan::read_limits); none listed: no file is.
  std::vector<bool> is_cached = {};
  std::vector<AdapterNames> adapters = {};  ///< one for each adapter of the catalog
};

/// The verdict covers all ranks; `ranks` are the ones whose transfers are worked out. Deterministic: the
/// same inputs give the same plan, byte for byte.
Result<Plan, Errors> make_plan(const PlanInputs& inputs, const std::vector<std::uint64_t>& ranks);

/// The base checkpoint itself as the model: every key a parameter of its own name, shape and dtype.
Result<model::Skeleton, Errors> skeleton_of(const checkpoint::Catalog& catalog);

}  // namespace lading::planner
