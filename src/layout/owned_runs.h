// OwnedRuns: where the elements of a rank's buffer stand in the whole tensor. The inverse view of a Region, for what
// must know an element's global index: digests, initial values, values handed in.
//
// Thread-safe once made.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "layout/layout.h"

namespace lading::layout {

/// Elements that stand side by side both in the buffer and in the whole tensor, row-major.
struct OwnedRun {
  std::uint64_t buffer_begin = 0;
  std::uint64_t global_begin = 0;
  std::uint64_t elems = 0;

  friend bool operator==(const OwnedRun&, const OwnedRun&) = default;
};

class OwnedRuns {
 public:
  OwnedRuns(const Region& region, const Shape& global);

  /// Calls `visit(OwnedRun)` for all elements of [begin, end) of the buffer that belong to the tensor, ascending.
  /// Padding, and other tensors of a shared buffer, are passed over.
  template <class Visit>
  void for_each(std::uint64_t begin, std::uint64_t end, Visit&& visit) const {
    Cursor cursor = at(std::max(begin, buffer_begin_));
    const std::uint64_t stop = std::min(end, buffer_begin_ + owned_elems_);
    while (cursor.buffer < stop) {
      const std::uint64_t elems = std::min(cursor.left, stop - cursor.buffer);
      visit(OwnedRun{cursor.buffer, cursor.global, elems});
      cursor = at(cursor.buffer + elems);
    }
  }

  [[nodiscard]] std::uint64_t owned_elems() const { return owned_elems_; }
  [[nodiscard]] std::uint64_t buffer_begin() const { return buffer_begin_; }

 private:
  struct Cursor {
    std::uint64_t buffer = 0;
    std::uint64_t global = 0;
    std::uint64_t left = 0;  // elements from here to the end of the run
  };
  struct Dim {
    std::vector<Run> runs;
    std::uint64_t local_stride = 1;
    std::uint64_t global_stride = 1;
    std::uint64_t local_size = 1;
  };

  [[nodiscard]] Cursor at(std::uint64_t buffer_elem) const;

  std::vector<Dim> dims_;  // down to the last one that is cut; what is inside of it is whole
  std::uint64_t inner_ = 1;
  std::uint64_t buffer_begin_ = 0;
  std::uint64_t product_begin_ = 0;  // the row-major index, in what is held, of the element at buffer_begin_
  std::uint64_t owned_elems_ = 0;
};

}  // namespace lading::layout
