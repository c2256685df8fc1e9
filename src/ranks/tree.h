// The tree along which ranks speak: wide, so that a thousand ranks are three steps from the first.
#pragma once

#include <cstdint>
#include <vector>

namespace lading::ranks {

inline constexpr std::uint64_t kArity = 16;

[[nodiscard]] inline std::uint64_t parent_of(std::uint64_t rank) { return (rank - 1) / kArity; }

[[nodiscard]] inline std::vector<std::uint64_t> children_of(std::uint64_t rank, std::uint64_t size) {
  std::vector<std::uint64_t> children;
  for (std::uint64_t child = kArity * rank + 1; child <= kArity * rank + kArity && child < size; ++child) {
    children.push_back(child);
  }
  return children;
}

}  // namespace lading::ranks
