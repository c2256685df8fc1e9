// What is done with nests of strided loops. Not for the checker, which does such arithmetic in its own way.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/inline_vector.h"
#include "base/strided_loop.h"
#include "lading/shape.h"

namespace lading {

[[nodiscard]] inline std::uint64_t source_stride(const ByteLoop& loop) { return loop.source_stride_bytes; }
[[nodiscard]] inline std::uint64_t target_stride(const ByteLoop& loop) { return loop.target_stride_bytes; }
[[nodiscard]] inline std::uint64_t source_stride(const ElementLoop& loop) { return loop.source_stride_elems; }
[[nodiscard]] inline std::uint64_t target_stride(const ElementLoop& loop) { return loop.target_stride_elems; }

/// How often the run is there.
template <class Loops>
[[nodiscard]] std::uint64_t rounds_of(const Loops& loops) {
  std::uint64_t product = 1;
  for (const auto& loop : loops) product *= loop.count;
  return product;
}

/// From the first run's begin to the last one's, in the source. No loop may be of 0 rounds.
template <class Loops>
[[nodiscard]] std::uint64_t source_reach(const Loops& loops) {
  std::uint64_t reach = 0;
  for (const auto& loop : loops) reach += (loop.count - 1) * source_stride(loop);
  return reach;
}

/// The largest steps in the target first: runs then come in the order of the buffer.
template <class Loops>
void sort_by_target(Loops& loops) {
  std::sort(loops.begin(), loops.end(),
            [](const auto& a, const auto& b) { return target_stride(a) > target_stride(b); });
}

/// Takes the innermost loops that go on where the run ends, on both sides, into the run; gives its new length.
///   run of 4, loops {3 × 40, 80} {5 × 4, 4}  ->  run of 20, loops {3 × 40, 80}
template <class Loops>
std::uint64_t grow_run(std::uint64_t run, Loops& loops) {
  while (!loops.empty() && source_stride(loops.back()) == run && target_stride(loops.back()) == run) {
    run *= loops.back().count;
    loops.pop_back();
  }
  return run;
}

/// Where a run stands, from where the nest begins.
struct RunOffsets {
  std::uint64_t source = 0;
  std::uint64_t target = 0;
};

/// Calls act(RunOffsets) for every run, the innermost loop turning fastest, until it answers false. Says whether all
/// had their turn.
template <class Loops, class Act>
bool for_each_run(const Loops& loops, const Act& act) {
  if (rounds_of(loops) == 0) return true;
  std::vector<std::uint64_t> rounds(loops.size(), 0);
  for (RunOffsets at;;) {
    if (!act(at)) return false;
    std::size_t turning = loops.size();
    for (; turning > 0; --turning) {
      const auto& loop = loops[turning - 1];
      std::uint64_t& round = rounds[turning - 1];
      if (++round < loop.count) {
        at.source += source_stride(loop);
        at.target += target_stride(loop);
        break;
      }
      at.source -= (loop.count - 1) * source_stride(loop);
      at.target -= (loop.count - 1) * target_stride(loop);
      round = 0;
    }
    if (turning == 0) return true;
  }
}

using Strides = InlineVector<std::uint64_t, 4>;

/// Of a row-major tensor, in elements.
[[nodiscard]] inline Strides strides_of(const Shape& shape) {
  Strides strides(shape.rank(), 1);
  for (std::size_t d = shape.rank(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

/// The row-major number of an element.
template <class Indices>
[[nodiscard]] std::uint64_t offset_of(const Indices& index, const Strides& strides) {
  std::uint64_t sum = 0;
  for (std::size_t d = 0; d < index.size(); ++d) sum += index[d] * strides[d];
  return sum;
}

}  // namespace lading
