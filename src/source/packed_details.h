// What config.json and headers do not say of packed weights, and small tensors do: which groups are in an order of
// their own (g_idx), and the true shapes of compressed-tensors (weight_shape).
#pragma once

#include "lading/result.h"
#include "source/checkpoint_source.h"

namespace lading::source {

/// Completes the quantization of the checkpoint's catalog. Reads nothing of checkpoints that are not packed so.
[[nodiscard]] Result<void> read_packed_details(const CheckpointSource& source, checkpoint::Quantization& quantization);

}  // namespace lading::source
