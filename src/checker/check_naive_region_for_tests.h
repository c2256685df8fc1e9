// For tests: whether a region says what a rank's memory holds, element by element.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "checker/check_naive_for_tests.h"

namespace lading::checker::naive {

/// The region's elements one by one, each at its place; and said as layout.h promises.
inline bool region_good(const layout::Region& region, const Shape& shape, const Memory& memory) {
  if (!region.present || region.runs.size() != shape.rank() || region.buffer_elems != memory.cells.size()) return false;
  std::vector<Indices> lists(shape.rank());
  Indices local;
  for (std::size_t d = 0; d < shape.rank(); ++d) {
    for (std::size_t r = 0; r < region.runs[d].size(); ++r) {
      const layout::Run& run = region.runs[d][r];
      if (run.size == 0 || run.local_begin != lists[d].size() || run.size > shape[d]) return false;
      if (r > 0 && run.begin <= lists[d].back() + 1) return false;  // could be joined, or does not ascend
      for (std::uint64_t i = 0; i < run.size; ++i) lists[d].push_back(run.begin + i);
    }
    if (!lists[d].empty() && lists[d].back() >= shape[d]) return false;
    local.push_back(lists[d].size());
  }
  if (Indices(region.local_shape.begin(), region.local_shape.end()) != local || lists != memory.lists) return false;
  Indices elems;
  for (std::uint64_t i = 0; i < product(local); ++i) {
    Indices index = unravel(i, local);
    for (std::size_t d = 0; d < index.size(); ++d) index[d] = lists[d][index[d]];
    elems.push_back(ravel(index, indices_of(shape)));
  }
  std::map<std::uint64_t, std::uint64_t> held;
  std::map<std::uint64_t, std::uint64_t> wanted;
  const auto flat = region.flat.value_or(layout::Region::Flat{0, elems.size(), 0});
  if (flat.begin > flat.end || flat.end > elems.size()) return false;
  if (flat.begin == flat.end && flat.buffer_begin != 0) return false;
  for (std::uint64_t i = flat.begin; i < flat.end; ++i) held[flat.buffer_begin + i - flat.begin] = elems[i];
  for (std::uint64_t i = 0; i < memory.cells.size(); ++i) {
    if (memory.cells[i].first == Cell::kOwned) wanted[i] = memory.cells[i].second;
  }
  return held == wanted && memory.is_flat == region.flat.has_value();
}

}  // namespace lading::checker::naive
