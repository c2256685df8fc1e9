// The order in which tensors that are computed from others can be computed (R66).
#pragma once

#include <cstdint>
#include <vector>

#include "planner/plan_types.h"

namespace lading::planner {

/// The statements with Provenance::kCall, inputs first, otherwise by name. Refuses inputs that are not there
/// and circles, naming every tensor in them.
Result<std::vector<StatementId>, Errors> call_order(const IndexedVector<StatementId, Statement>& statements);

}  // namespace lading::planner
