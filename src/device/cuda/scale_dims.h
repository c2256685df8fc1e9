// What jobs are told of scales: the dims of a quantized tensor as kernels want them, dtypes, zero points.
#pragma once

#include <cstdint>
#include <vector>

#include "device/cuda/kernel_jobs.h"
#include "device/device.h"
#include "lading/shape.h"

namespace lading::device::cuda {

/// Those of device/quantized/scale_grid.h, with `first` 0.
[[nodiscard]] std::vector<DequantizeDim> scale_dims(const Shape& shape, const Shape& block);
/// The same, of scales that may have groups.
[[nodiscard]] std::vector<DequantizeDim> scale_dims(const BlockScales& scales);

/// Where the element stands that is at the job's source.
struct ScalePlace {
  std::uint64_t scales = 0;       ///< an address, of scale number `first_scale`
  std::uint64_t zeros = 0;        ///< the same, of zero points
  std::uint64_t scale_bytes = 8;  ///< of a scale
  std::uint64_t first_scale = 0;
  std::uint64_t elem = 0;    ///< its row-major number in the tensor
  std::uint64_t groups = 0;  ///< an address; 0: none
};

/// Tells the job about dims, scales and zero points.
void place_dims(const std::vector<DequantizeDim>& dims, const ScalePlace& place, DequantizeJob& job);

/// Everything else about them, the address of groups apart, that depends neither on the move's place nor on memory.
void describe_scales(const BlockScales& scales, DType to, DequantizeJob& job);

}  // namespace lading::device::cuda
