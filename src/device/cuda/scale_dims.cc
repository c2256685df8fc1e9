#include "device/cuda/scale_dims.h"

#include "device/quantized/scale_grid.h"
#include "device/quantized/scale_values.h"
#include "lading/result.h"

namespace lading::device::cuda {

std::vector<DequantizeDim> scale_dims(const Shape& shape, const Shape& block) {
  std::vector<DequantizeDim> dims;
  for (const GridDim& dim : grid_dims(shape, block)) dims.push_back({dim.extent, dim.block, dim.grid_stride, 0});
  return dims;
}

std::vector<DequantizeDim> scale_dims(const BlockScales& scales) {
  if (scales.groups.empty()) return scale_dims(scales.shape, scales.block);
  std::vector<DequantizeDim> dims;
  for (const GridDim& dim : all_grid_dims(scales.shape, scales.block))
    dims.push_back({dim.extent, dim.block, dim.grid_stride, 0});
  return dims;
}

void place_dims(const std::vector<DequantizeDim>& dims, const ScalePlace& place, DequantizeJob& job) {
  LADING_CHECK(dims.size() <= kMaxScaleDims);
  job.dim_count = static_cast<std::uint32_t>(dims.size());
  std::uint64_t rest = place.elem;
  std::uint64_t number = 0;  // of the first scale that the kernel counts from
  for (std::size_t d = dims.size(); d-- > 0;) {
    job.dims[d] = dims[d];
    const bool is_cut = d == 0 && place.groups == 0;
    const std::uint64_t modulus = is_cut ? dims[d].block : dims[d].extent;
    job.dims[d].first = rest % modulus;
    if (is_cut) number = rest / modulus * dims[d].grid_stride;
    rest /= modulus;
  }
  // May lie before the memory that is there; what kernels add to it leads back.
  job.scales = place.scales + (number - place.first_scale) * place.scale_bytes;
  job.zeros = place.zeros + (number - place.first_scale);
  job.groups = place.groups;
}

void describe_scales(const BlockScales& scales, DType to, DequantizeJob& job) {
  job.product = static_cast<std::uint32_t>(scales.product.value_or(to));
  job.scale_dtype = static_cast<std::uint32_t>(scales.dtype);
  job.tensor_scale = scales.tensor_scale;
  job.tensor_reciprocal = 1 / scales.tensor_scale;
  job.tensor_step = static_cast<std::uint32_t>(tensor_step(scales, to));
  job.code = scales.code ? static_cast<std::uint32_t>(*scales.code) : kNoCode;
  job.zero = static_cast<std::uint32_t>(scales.zero);
  job.has_zeros = scales.zeros.empty() ? 0 : 1;
  if (scales.groups.empty()) return;
  const std::vector<GridDim> dims = all_grid_dims(scales.shape, scales.block);
  job.group_grid_stride = dims[scales.groups_dim].grid_stride;
  job.group_strides[scales.groups_dim] = dims.back().extent;
  job.group_strides[dims.size() - 1] = 1;
}

}  // namespace lading::device::cuda
