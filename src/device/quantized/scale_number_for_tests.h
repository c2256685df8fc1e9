// For tests: which scale an element of a quantized tensor has.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"

namespace lading::device::quantized {

/// The number of the scale of an element, by the definition.
inline std::uint64_t scale_number(const BlockScales& scales, std::uint64_t elem) {
  std::uint64_t number = 0;
  std::uint64_t grid_stride = 1;
  std::uint64_t code = 0;  // along the groups
  std::uint64_t codes = 1;
  std::uint64_t group_stride = 0;
  for (std::size_t d = scales.shape.rank(); d-- > 0;) {
    const std::uint64_t index = elem % scales.shape[d];
    if (!scales.groups.empty() && (d == scales.groups_dim || d + 1 == scales.shape.rank())) {
      code += index * codes;
      codes *= scales.shape[d];
      if (d == scales.groups_dim) group_stride = grid_stride;
    } else {
      number += index / scales.block[d] * grid_stride;
    }
    grid_stride *= (scales.shape[d] + scales.block[d] - 1) / scales.block[d];
    elem /= scales.shape[d];
  }
  return scales.groups.empty() ? number : number + scales.groups.at(code) * group_stride;
}

}  // namespace lading::device::quantized
