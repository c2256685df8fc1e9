// Scales as numbers, on the host, and how they go together with the scale of the tensor: host and GPU work in F64, and
// both ask here, so that they give the same bits. No state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/device.h"
#include "device/quantized/tensor_step.h"
#include "lading/dtype.h"

namespace lading::device {

/// Stored scales as numbers, exactly: as many as `out` has. Also of F8_E8M0, of which find_cast() has no casts, because
/// it holds no ordinary numbers.
void widen_scales(const std::byte* stored, DType dtype, std::span<double> out);

/// The scales of `values` from number `first` on, as many as `out` has. The scale of the tensor is not in them.
void scales_at(const BlockScales& scales, std::uint64_t first, std::span<double> out);
[[nodiscard]] std::uint64_t scale_count(const BlockScales& scales);

/// For results of this dtype.
[[nodiscard]] TensorStep tensor_step(const BlockScales& scales, DType to);

/// What elements are multiplied by, of a scale of a block.
[[nodiscard]] inline double factor_of(double scale, double tensor_scale, TensorStep step) {
  if (step == TensorStep::kTimesScale || step == TensorStep::kTimesScaleToOdd) return scale * tensor_scale;
  return step == TensorStep::kDividesScale ? scale / tensor_scale : scale;
}

}  // namespace lading::device
