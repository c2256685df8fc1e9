// Whether a dtype has the constants that are written into it: the checker's own table, by limits that were
// worked out by hand. Shares nothing with the planner's, which rounds.
#pragma once

#include "checker/plan_types.h"
#include "lading/dtype.h"
#include "lading/result.h"

namespace lading::checker {

/// True if the value is one of the dtype's, or rounds to one that is finite.
[[nodiscard]] bool dtype_has(DType dtype, double value);

/// Refuses constants of a fill, a pad or a random recipe that the tensor's dtype does not have (R19, R20).
[[nodiscard]] Result<void> check_values(const Statement& statement);

}  // namespace lading::checker
