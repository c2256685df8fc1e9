// Box: a block of a tensor's elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lading {

/// The elements with begin[d] <= index[d] < end[d] in every dim.
struct Box {
  std::vector<std::uint64_t> begin;
  std::vector<std::uint64_t> end;

  [[nodiscard]] std::size_t rank() const { return begin.size(); }
};

}  // namespace lading
