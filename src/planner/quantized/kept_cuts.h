// Quantized payloads that are kept: a module computes with its part of the payload and its part of the scales, so a cut
// must not pass through a block (R48). Internal to the room.
#pragma once

#include "planner/decide.h"
#include "planner/planner.h"

namespace lading::planner {

/// Each kept payload that a rank would hold a part of a block of: with the numbers of ranks nearby that would do. Cuts
/// that are gathered before the module computes, FSDP2's and flat ones, may pass anywhere.
Errors check_kept_cuts(const PlanInputs& inputs, const Decisions& decisions);

}  // namespace lading::planner
