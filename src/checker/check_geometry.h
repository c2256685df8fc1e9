// Which elements of a tensor a rank holds and where they lie in its memory: the checker's own reading of
// layout's cuts, by lists of indices. Shares nothing with layout's region_of.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "checker/trace.h"
#include "lading/result.h"
#include "lading/shape.h"
#include "layout/layout.h"

namespace lading::checker {

/// One rank's place in the mesh.
struct Seating {
  const layout::Mesh& mesh;
  std::vector<std::uint64_t> coordinate;

  /// The mesh must have been checked, and hold the rank.
  Seating(const layout::Mesh& mesh_, std::uint64_t rank);
};

/// What is wrong with the mesh; ranks() may be asked only if nothing is.
Result<void> check_axes(const layout::Mesh& mesh);

/// Whether a slot has memory on the rank: its owner cuts say so. The cuts must have been checked.
bool is_present(const layout::Slot& slot, const Seating& seating);

/// What is wrong with cutting a tensor so, on any rank.
Result<void> check_slot(const Shape& shape, const layout::Slot& slot, const layout::Mesh& mesh);

/// A rank's share of a tensor.
class Share {
 public:
  /// The slot must have been checked, and be present.
  static Result<Share> of(const Shape& shape, const layout::Slot& slot, const Seating& seating);

  [[nodiscard]] std::uint64_t owned_elems() const { return end_ - begin_; }
  [[nodiscard]] std::uint64_t buffer_elems() const { return buffer_elems_; }
  /// Where the first owned element lies in the buffer; the others follow it.
  [[nodiscard]] std::uint64_t buffer_begin() const { return buffer_begin_; }
  /// Elements behind the owned ones that belong to nobody and must be zero (R56).
  [[nodiscard]] std::uint64_t padding_elems() const { return padding_elems_; }

  /// Whether the region, of a tensor of this shape, says the same.
  [[nodiscard]] bool is(const layout::Region& region, const Shape& shape) const;

  /// Stretches of the global tensor, row-major: [begin, end), and so on in `rounds`; false: enough.
  using Visit = std::function<bool(std::uint64_t begin, std::uint64_t end, Rounds rounds)>;
  /// The owned elements in the order of the buffer. Rows that are cut alike are visited together.
  bool for_each_stretch(const Visit& visit) const;

 private:
  // Indices of one dim that are held: the `at`-th to (`at` + `size` - 1)-th are `begin` and following.
  struct Held {
    std::uint64_t begin = 0;
    std::uint64_t at = 0;
    std::uint64_t size = 0;
  };
  struct Dim {
    std::uint64_t global = 0;
    std::uint64_t local = 0;
    std::vector<Held> held;  // empty: all of them
  };

  [[nodiscard]] std::uint64_t rows_alike(std::uint64_t row, std::size_t split) const;
  static Result<void> take_chunks(Dim& dim, const layout::Cut& cut, std::uint64_t index, std::uint64_t size);
  void take_flat(const layout::Cut& cut, std::uint64_t index, std::uint64_t size);
  void take_group(const layout::Cut& cut, std::uint64_t index, std::uint64_t size);

  std::vector<Dim> dims_;
  std::uint64_t begin_ = 0;  // of the row-major local tensor
  std::uint64_t end_ = 0;
  std::uint64_t buffer_begin_ = 0;
  std::uint64_t buffer_elems_ = 0;
  std::uint64_t padding_elems_ = 0;
  bool is_flat_ = false;
};

}  // namespace lading::checker
