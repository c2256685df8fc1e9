// Which keys are dequantized: a model of ordinary floats that is loaded from payloads with scales (R48). Internal to
// the room.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/resolve.h"
#include "planner/plan_types.h"
#include "planner/planner.h"
#include "planner/quantized/packed_weights.h"

namespace lading::planner {

/// By the key of a payload: why it is not dequantized, though a tensor of ordinary floats is to be made of it.
using NotDequantized = std::map<std::string, Reason, std::less<>>;

/// How many keys the plan dequantizes.
[[nodiscard]] std::uint64_t count_dequantized(const Plan& plan);

/// Keys that a checkpoint may have beside a payload, and that ordinary floats have no use for. Modules that compute
/// with payloads scale their inputs too, and what they put into caches; scales of keys and values stand beside the
/// weights (modelopt), or in the module around them.
[[nodiscard]] std::vector<std::string> scales_beside(std::string_view payload);

/// Which elements of a payload of 8-bit floats share a scale: as config.json says, or as the shapes leave no doubt.
/// Otherwise why not.
[[nodiscard]] Result<Shape, std::string> block_of_scales(const checkpoint::Catalog& catalog,
                                                         const checkpoint::CatalogTensor& payload,
                                                         const checkpoint::CatalogTensor& scales);

/// Those that the model reads as ordinary weights: not where the policy keeps payloads, or modules have them.
[[nodiscard]] PackedWeights packed_weights_of(const PlanInputs& inputs);

/// In expressions, names of packed weights become what the weights are made of. In those of tensors of ordinary floats,
/// payloads of 8-bit floats with one scale, and packed weights under their payload's own name, become `dequantize` too,
/// where nothing else reads the scale. Their keys are no longer unread.
NotDequantized dequantize_payloads(const PlanInputs& inputs, const PackedWeights& packed, mapping::Resolution& names);

}  // namespace lading::planner
