// Strided loops: how bytes or elements are taken here and put there. for i in [0, count): both sides move on by a
// stride. A nest is a list of them, outermost first, around a contiguous run; a nest without loops is the run alone.
//
// The data only, which planner, checker, executor and devices share. What is done with nests: base/loop_nest.h.
#pragma once

#include <cstdint>

namespace lading {

struct ByteLoop {
  std::uint64_t count = 1;
  std::uint64_t source_stride_bytes = 0;
  std::uint64_t target_stride_bytes = 0;

  friend bool operator==(const ByteLoop&, const ByteLoop&) = default;
};

/// While it is not known yet how large an element is.
struct ElementLoop {
  std::uint64_t count = 1;
  std::uint64_t source_stride_elems = 0;
  std::uint64_t target_stride_elems = 0;

  friend bool operator==(const ElementLoop&, const ElementLoop&) = default;
};

/// One side: bytes that are taken, wherever they go.
struct TakenLoop {
  std::uint64_t count = 1;
  std::uint64_t stride_bytes = 0;

  friend bool operator==(const TakenLoop&, const TakenLoop&) = default;
};

}  // namespace lading
