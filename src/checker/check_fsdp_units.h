// FSDP2's units. Internal to the room.
#pragma once

#include "checker/plan_types.h"
#include "lading/result.h"

namespace lading::checker {

/// FSDP2 gathers a unit by one call, over one process group, and casts all that is floating in it or nothing (R27).
void check_fsdp_units(const Plan& plan, Errors& errors);

}  // namespace lading::checker
