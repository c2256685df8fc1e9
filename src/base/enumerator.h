// Whether a value of an enum is one of its enumerators: programs may cast any number to one.
#pragma once

#include <type_traits>

namespace lading {

/// Of enums that count from 0 to `last` without gaps.
template <class Enum>
[[nodiscard]] constexpr bool is_enumerator(Enum value, Enum last) {
  using Number = std::underlying_type_t<Enum>;
  return static_cast<Number>(value) <= static_cast<Number>(last);
}

}  // namespace lading
