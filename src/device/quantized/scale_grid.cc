#include "device/quantized/scale_grid.h"

#include <algorithm>

namespace lading::device {

std::vector<GridDim> grid_dims(const Shape& shape, const Shape& block) {
  std::vector<GridDim> dims;  // innermost first
  for (std::size_t d = shape.rank(); d-- > 0;) {
    const GridDim outer = {shape[d], std::min(block[d], std::max<std::uint64_t>(1, shape[d])), 1};
    if (outer.extent == 1) continue;
    GridDim* const inner = dims.empty() ? nullptr : &dims.back();
    if (inner != nullptr && inner->block == inner->extent) {
      *inner = {outer.extent * inner->extent, outer.block * inner->extent, 1};
    } else if (inner != nullptr && outer.block == 1 && inner->extent % inner->block == 0) {
      inner->extent *= outer.extent;
    } else {
      dims.push_back(outer);
    }
  }
  if (dims.size() == 1 && dims.front().block == dims.front().extent) dims.clear();
  std::uint64_t grid_stride = 1;
  for (GridDim& dim : dims) {
    dim.grid_stride = grid_stride;
    grid_stride *= (dim.extent + dim.block - 1) / dim.block;
  }
  std::reverse(dims.begin(), dims.end());
  return dims;
}

std::vector<GridDim> all_grid_dims(const Shape& shape, const Shape& block) {
  std::vector<GridDim> dims(shape.rank());
  std::uint64_t grid_stride = 1;
  for (std::size_t d = shape.rank(); d-- > 0;) {
    dims[d] = {shape[d], block[d], grid_stride};
    grid_stride *= (shape[d] + block[d] - 1) / block[d];
  }
  return dims;
}

}  // namespace lading::device
