// Elements and bytes of a dtype, packed ones included, without a Shape: the checker asks for each transfer.
#pragma once

#include <cstdint>
#include <optional>

#include "base/checked.h"
#include "lading/dtype.h"

namespace lading::checker {

/// Nothing if the elements do not end at a byte, or are too many.
[[nodiscard]] inline std::optional<std::uint64_t> bytes_of(std::uint64_t elems, DType dtype) {
  const std::uint64_t width = bits(dtype);
  if (width % 8 == 0) return checked_mul(elems, width / 8);
  const auto all = checked_mul(elems, width);
  if (!all || *all % 8 != 0) return std::nullopt;
  return *all / 8;
}

/// Nothing if the bytes do not end where an element does.
[[nodiscard]] inline std::optional<std::uint64_t> elems_in(std::uint64_t bytes, DType dtype) {
  const std::uint64_t width = bits(dtype);
  if (width % 8 == 0) return bytes % (width / 8) == 0 ? std::optional(bytes / (width / 8)) : std::nullopt;
  const auto all = checked_mul(bytes, 8);
  if (!all || *all % width != 0) return std::nullopt;
  return *all / width;
}

}  // namespace lading::checker
