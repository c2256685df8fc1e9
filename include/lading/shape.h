// Shape: the extents of a tensor; Box: a block of one. Sizes are checked, never assumed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "lading/dtype.h"
#include "lading/export.h"
#include "lading/inline_vector.h"

namespace lading {

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::uint64_t> dims) : dims_(dims) {}
  explicit Shape(const std::vector<std::uint64_t>& dims) : dims_(dims) {}
  explicit Shape(std::vector<std::uint64_t>&& dims) : dims_(dims) {}  // for those who have no more use for it

  [[nodiscard]] std::size_t rank() const { return dims_.size(); }
  [[nodiscard]] std::uint64_t operator[](std::size_t dim) const { return dims_[dim]; }
  [[nodiscard]] auto begin() const { return dims_.begin(); }
  [[nodiscard]] auto end() const { return dims_.end(); }
  [[nodiscard]] const InlineVector<std::uint64_t, 4>& dims() const { return dims_; }

  /// One more dim, behind the others.
  void push_back(std::uint64_t dim) { dims_.push_back(dim); }

  /// 1 for rank 0; nothing if the dims that are not zero multiply to 2^63 or more (S3).
  [[nodiscard]] LADING_API std::optional<std::uint64_t> num_elems() const;
  /// Nothing on overflow, or where packed elements do not end at a byte.
  [[nodiscard]] LADING_API std::optional<std::uint64_t> size_bytes(DType dtype) const;
  /// "[2, 3]"
  [[nodiscard]] LADING_API std::string text() const;

  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  InlineVector<std::uint64_t, 4> dims_;
};

/// The elements with begin[d] <= index[d] < end[d] in every dim.
struct Box {
  std::vector<std::uint64_t> begin;
  std::vector<std::uint64_t> end;

  [[nodiscard]] LADING_API static Box whole(const Shape& shape);
  [[nodiscard]] std::size_t rank() const { return begin.size(); }
  [[nodiscard]] LADING_API Shape extents() const;
  [[nodiscard]] LADING_API bool empty() const;
  [[nodiscard]] LADING_API bool within(const Shape& shape) const;
  [[nodiscard]] LADING_API bool satisfies_invariants() const;

  friend bool operator==(const Box&, const Box&) = default;
};

/// The common elements; a box that is empty() if there are none. Ranks must agree.
[[nodiscard]] LADING_API Box intersect(const Box& a, const Box& b);

}  // namespace lading
