// torch.chunk in integers: the one rule from which all cuts are made (R53). Sizes stay below 2^63 and
// groups at 2^32 or less, so none of this can overflow.
#pragma once

#include <algorithm>
#include <cstdint>

#include "layout/layout.h"

namespace lading::layout {

/// Half-open.
struct Interval {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  friend bool operator==(const Interval&, const Interval&) = default;
};

[[nodiscard]] constexpr std::uint64_t divide_up(std::uint64_t a, std::uint64_t b) {
  return a / b + (a % b == 0 ? 0 : 1);
}

[[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t a, std::uint64_t multiple) {
  return divide_up(a, multiple) * multiple;
}

/// The part of `elems` things at this seat: equal parts, rounded up; the last may be shorter or empty.
[[nodiscard]] constexpr Interval chunk(std::uint64_t elems, Seat seat) {
  const std::uint64_t part = divide_up(elems, seat.size);
  // A seat that is so far behind that the product might overflow has nothing.
  if (part == 0 || seat.index > elems / part) return {elems, elems};
  const std::uint64_t begin = std::min(elems, seat.index * part);
  return {begin, begin + std::min(part, elems - begin)};
}

}  // namespace lading::layout
