// RecordedRegion: which elements of a tensor a rank holds, said so that it can be compared and walked without the
// layout that it came from. Pure data; a cursor belongs to one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lading/shape.h"
#include "layout/layout.h"

namespace lading::ledger {

/// Indices [begin, begin + size) of one dim.
struct RecordedRun {
  std::uint64_t begin = 0;
  std::uint64_t size = 0;

  friend bool operator==(const RecordedRun&, const RecordedRun&) = default;
};

struct RecordedRegion {
  /// Per dim, ascending, none empty, none that could be joined; their product is what is held, before `flat`.
  std::vector<std::vector<RecordedRun>> runs;
  struct Stretch {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;

    friend bool operator==(const Stretch&, const Stretch&) = default;
  };
  std::optional<Stretch> flat;  ///< set: only this stretch of the product, row-major, is held

  [[nodiscard]] std::uint64_t elems() const;
  [[nodiscard]] std::uint64_t product_elems() const;

  static RecordedRegion whole(const Shape& shape);
  /// A rank's share as the layout has it, without where it sits in memory.
  static RecordedRegion of(const layout::Region& region);

  friend bool operator==(const RecordedRegion&, const RecordedRegion&) = default;
};

/// Whether the region is one of a tensor of this shape, with everything that is said above.
[[nodiscard]] bool satisfies_invariants(const RecordedRegion& region, const Shape& shape);

/// A text that is equal for equal regions only, for sorting and grouping.
[[nodiscard]] std::string code_of(const RecordedRegion& region);

/// Walks over a region's elements, which ascend in the whole tensor: one stretch after the other.
class RegionCursor {
 public:
  /// Borrows the region.
  RegionCursor(const RecordedRegion& region, const Shape& shape);

  [[nodiscard]] bool done() const { return left_ == 0; }
  /// Where in the whole tensor, row-major, the stretch begins.
  [[nodiscard]] std::uint64_t begin() const { return begin_; }
  [[nodiscard]] std::uint64_t elems() const { return elems_; }
  /// Passes over the first elements of the stretch, at most all of them.
  void advance(std::uint64_t elems);

 private:
  struct Dim {
    const std::vector<RecordedRun>* runs = nullptr;
    std::uint64_t stride = 1;  // in the whole tensor
    std::size_t run = 0;
    std::uint64_t offset = 0;  // in the run
  };

  void seek(std::uint64_t product_elem);
  void next();
  void settle(std::uint64_t inside);

  std::vector<Dim> dims_;  // down to the last one that is cut; what is inside of it is whole
  std::uint64_t inner_ = 1;
  std::uint64_t left_ = 0;  // of the region, the stretch included
  std::uint64_t begin_ = 0;
  std::uint64_t elems_ = 0;
};

}  // namespace lading::ledger
