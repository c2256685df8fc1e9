#include "lading/shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/checked.h"
#include "base/element_bytes.h"
#include "lading/result.h"

namespace lading {

std::optional<std::uint64_t> Shape::num_elems() const {
  std::uint64_t product = 1;
  bool has_zero = false;
  for (const std::uint64_t dim : dims_) {
    if (dim == 0) {
      has_zero = true;
      continue;
    }
    const auto next = checked_mul(product, dim);
    if (!next) return std::nullopt;
    product = *next;
  }
  return has_zero ? 0 : product;
}

std::optional<std::uint64_t> Shape::size_bytes(DType dtype) const {
  const auto elems = num_elems();
  return elems ? element_bytes(*elems, dtype) : std::nullopt;
}

std::string Shape::text() const { return fmt::format("[{}]", fmt::join(dims_, ", ")); }

Box Box::whole(const Shape& shape) { return {std::vector<std::uint64_t>(shape.rank(), 0), shape.dims()}; }

Shape Box::extents() const {
  std::vector<std::uint64_t> dims(rank());
  for (std::size_t d = 0; d < rank(); ++d) dims[d] = end[d] - begin[d];
  return Shape(std::move(dims));
}

bool Box::empty() const {
  for (std::size_t d = 0; d < rank(); ++d) {
    if (begin[d] == end[d]) return true;
  }
  return false;
}

bool Box::satisfies_invariants() const {
  return begin.size() == end.size() && std::equal(begin.begin(), begin.end(), end.begin(), std::less_equal<>());
}

bool Box::within(const Shape& shape) const {
  return satisfies_invariants() && rank() == shape.rank() &&
         std::equal(end.begin(), end.end(), shape.begin(), std::less_equal<>());
}

Box intersect(const Box& a, const Box& b) {
  LADING_CHECK(a.rank() == b.rank());
  Box common = a;
  for (std::size_t d = 0; d < a.rank(); ++d) {
    common.begin[d] = std::max(a.begin[d], b.begin[d]);
    common.end[d] = std::max(common.begin[d], std::min(a.end[d], b.end[d]));
  }
  return common;
}

}  // namespace lading
