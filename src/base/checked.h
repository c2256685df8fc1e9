// Checked arithmetic: every size and offset goes through here. Nothing on overflow.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

namespace lading {

/// Sizes stay below 2^63, so that they are also valid as signed file offsets.
inline constexpr std::uint64_t kMaxSize = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

[[nodiscard]] inline std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum) || sum > kMaxSize) return std::nullopt;
  return sum;
}

[[nodiscard]] inline std::optional<std::uint64_t> checked_sub(std::uint64_t a, std::uint64_t b) {
  if (b > a) return std::nullopt;
  return a - b;
}

[[nodiscard]] inline std::optional<std::uint64_t> checked_mul(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product) || product > kMaxSize) return std::nullopt;
  return product;
}

/// The same number in another integer type, or nothing if it does not fit.
template <std::integral To, std::integral From>
[[nodiscard]] std::optional<To> checked_cast(From value) {
  if (!std::in_range<To>(value)) return std::nullopt;
  return static_cast<To>(value);
}

}  // namespace lading
