// How many bytes so many elements of a dtype fill. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "base/checked.h"
#include "lading/dtype.h"

namespace lading {

/// Nothing on overflow, or where packed elements do not end at a byte.
[[nodiscard]] inline std::optional<std::uint64_t> element_bytes(std::uint64_t elems, DType dtype) {
  // Eight elements always fill `bits` whole bytes; only the rest can end inside one.
  const std::uint64_t element_bits = bits(dtype);
  const std::uint64_t rest_bits = elems % 8 * element_bits;
  if (elems > kMaxSize || rest_bits % 8 != 0) return std::nullopt;
  const auto whole = checked_mul(elems / 8, element_bits);
  if (!whole) return std::nullopt;
  return checked_add(*whole, rest_bits / 8);
}

/// The same of sizes that are known to be sound: those of a plan that was checked.
[[nodiscard]] inline std::uint64_t bytes_of_elems(std::uint64_t elems, DType dtype) {
  return elems / 8 * bits(dtype) + elems % 8 * bits(dtype) / 8;
}

}  // namespace lading
