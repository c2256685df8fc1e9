// Which tensor of the model each key of an adapter is. Internal to the room.
#pragma once

#include "lading/result.h"
#include "planner/decide.h"
#include "planner/planner.h"

namespace lading::planner {

/// Fills Decisions::adapter_keys; the statements are begun. Every key must have a place, and every name of
/// PlanInputs::adapters a key: tensors that have a problem are marked as refused (R39, R41, R43).
Errors find_adapter_keys(const PlanInputs& inputs, Decisions& decisions);

}  // namespace lading::planner
