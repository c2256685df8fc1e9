// What config.json says of quantization, against what the files have (R48). Internal to the room.
#pragma once

#include "lading/result.h"
#include "planner/decide.h"
#include "planner/planner.h"

namespace lading::planner {

/// A configuration of quantization without a quantized key, modules that are said not to be quantized and are, or that
/// nothing has; scales without a payload. After sources are chosen: a mapping may know a scale that its name does not
/// show.
[[nodiscard]] Errors check_quantization_config(const PlanInputs& inputs, const Decisions& decisions);

}  // namespace lading::planner
