// What config.json says of quantization, against what the files have (R48). Internal to the room.
#pragma once

#include "lading/result.h"
#include "planner/planner.h"

namespace lading::planner {

/// A configuration of quantization without a quantized key, modules that are said not to be quantized and are, or that
/// nothing has; scales without a payload.
[[nodiscard]] Errors check_quantization_config(const PlanInputs& inputs);

}  // namespace lading::planner
