// Shape: the extents of a tensor. Sizes are checked, never assumed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lading/detail/inline_vector.h"
#include "lading/dtype.h"
#include "lading/export.h"

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
  [[nodiscard]] std::span<const std::uint64_t> dims() const { return {dims_.begin(), dims_.end()}; }

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
  detail::InlineVector<std::uint64_t, 4> dims_;
};

}  // namespace lading
