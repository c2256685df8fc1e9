// Puts a vector in another order without a second one: a header of a million tensors is large enough once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace lading::checkpoint {

/// Element i becomes what element order[i] was. `order` has every number below its size once.
template <class T>
void arrange(std::vector<T>& elements, const std::vector<std::uint32_t>& order) {
  std::vector<bool> is_placed(order.size(), false);
  for (std::size_t start = 0; start < order.size(); ++start) {
    if (is_placed[start] || order[start] == start) continue;
    T first = std::move(elements[start]);
    std::size_t hole = start;
    while (order[hole] != start) {
      elements[hole] = std::move(elements[order[hole]]);
      is_placed[hole] = true;
      hole = order[hole];
    }
    elements[hole] = std::move(first);
    is_placed[hole] = true;
  }
}

}  // namespace lading::checkpoint
