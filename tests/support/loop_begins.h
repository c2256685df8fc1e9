// For tests: where each run of a loop nest begins, in the source and in the target.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace lading::test {

template <class Loops>
std::vector<std::pair<std::uint64_t, std::uint64_t>> loop_begins(std::uint64_t from, std::uint64_t to,
                                                                 const Loops& loops) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> begins = {{from, to}};
  for (const auto& loop : loops) {
    const std::size_t known = begins.size();
    for (std::uint64_t i = 1; i < loop.count; ++i) {
      for (std::size_t k = 0; k < known; ++k) {
        begins.emplace_back(begins[k].first + i * loop.source_stride_bytes,
                            begins[k].second + i * loop.target_stride_bytes);
      }
    }
  }
  return begins;
}

}  // namespace lading::test
