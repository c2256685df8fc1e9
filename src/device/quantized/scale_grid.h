// The dims of a quantized tensor, as far as scales know them: each costs a division, so there should be few. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "lading/shape.h"

namespace lading::device {

/// A dim of a quantized tensor, or several that are as good as one.
struct GridDim {
  std::uint64_t extent = 1;
  std::uint64_t block = 1;        ///< elements along the dim that share a scale
  std::uint64_t grid_stride = 1;  ///< from one block to the next, in scales
};

/// Outermost first. Two neighbours are one dim if the inner one is whole in a block, or the outer one has blocks of 1
/// and the inner one no ragged block. None if all elements share a scale.
///   [8, 256, 512] in blocks of [1, 128, 512]  ->  [1048576] in blocks of 65536
[[nodiscard]] std::vector<GridDim> grid_dims(const Shape& shape, const Shape& block);

/// One for each dim of the tensor: where groups say which block an element is in, its index in each dim is needed.
[[nodiscard]] std::vector<GridDim> all_grid_dims(const Shape& shape, const Shape& block);

}  // namespace lading::device
