// The planner's dtypes: every statement is put to policy, with all that it asks.
#pragma once

#include "planner/decide.h"
#include "planner/planner.h"
#include "policy/policy.h"

namespace lading::planner {

/// Sets checkpoint_dtype, storage, compute and dtype_reason of every statement. Adds one warning to the plan if
/// the checkpoint's dtypes make compute_dtype void for trainable parameters (R26).
Errors decide_dtypes(const PlanInputs& inputs, const policy::Pins& pins, Decisions& decisions);

}  // namespace lading::planner
