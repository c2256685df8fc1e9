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

}  // namespace lading
