// The planner's FSDP2 units: parameters that are gathered together must be alike in what FSDP2 has one of for
// a unit (R27). Pure.
#pragma once

#include "planner/plan_types.h"
#include "planner/planner.h"

namespace lading::planner {

/// Units of unlike dtypes, mesh axes or devices. A unit's cuts along other dims than 0 become `even`, as FSDP2
/// will have them; those that are not are refused.
Errors check_units(const PlanInputs& inputs, Plan& plan);

}  // namespace lading::planner
