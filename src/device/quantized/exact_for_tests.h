// For tests: products, quotients and roundings in whole numbers, said a second time and shared with no code that
// dequantizes.
//
// A number is n / d * 2^e. Which code of a dtype is nearest is found by comparing whole numbers of at most 80 bits;
// nothing is rounded before. The dtypes' limits come from cast_reference_for_tests.h.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "device/cast_reference_for_tests.h"
#include "lading/decoding.h"

namespace lading::device::exact {

__extension__ using Wide = unsigned __int128;

struct Number {
  bool is_negative = false;
  Wide over = 0;
  std::uint64_t under = 1;
  int exponent = 0;
};

inline int length(Wide number) {
  int bits = 0;
  for (; number != 0; number /= 2) ++bits;
  return bits;
}

/// Of a * 2^x and b * 2^y: below 0 if the first is less, 0 if they are equal.
inline int compare(Wide a, int x, Wide b, int y) {
  if (a == 0 || b == 0) return (a != 0 ? 1 : 0) - (b != 0 ? 1 : 0);
  const int more = length(a) + x - length(b) - y;
  if (more != 0) return more;
  for (; x > y; --x) a *= 2;
  for (; y > x; --y) b *= 2;
  return a < b ? -1 : a == b ? 0 : 1;
}

/// A finite code without its sign; or one that is, with it.
inline Number whole_of(const reference::Layout& layout, std::uint64_t code) {
  const std::uint64_t half = std::uint64_t{1} << (layout.bits - 1);
  const std::uint64_t ones = std::uint64_t{1} << layout.mantissa_bits;
  const std::uint64_t magnitude = code % half;
  const std::uint64_t exponent = magnitude / ones;
  const int unit = 1 - layout.bias - static_cast<int>(layout.mantissa_bits);
  if (exponent == 0) return {code >= half, magnitude, 1, unit};
  return {code >= half, ones + magnitude % ones, 1, unit + static_cast<int>(exponent) - 1};
}

/// A double of at most 24 significant bits.
inline Number value_of_double(double value) {
  int exponent = 0;
  const double fraction = std::frexp(std::abs(value), &exponent);
  const double whole = std::ldexp(fraction, 24);
  if (whole != std::floor(whole)) std::abort();
  return {std::signbit(value), static_cast<std::uint64_t>(whole), 1, exponent - 24};
}

/// The code of the nearest number, of two the even one; one past the largest on overflow. For dtypes with infinities.
inline std::uint64_t nearest(const reference::Layout& layout, const Number& number) {
  const auto compare_with = [&](Wide magnitude, int exponent) {
    return compare(number.over, number.exponent, magnitude * number.under, exponent);
  };
  std::uint64_t below = 0;
  for (std::uint64_t above = layout.largest + 1; above - below > 1;) {
    const std::uint64_t middle = below + (above - below) / 2;
    const Number at = whole_of(layout, middle);
    (compare_with(at.over, at.exponent) >= 0 ? below : above) = middle;
  }
  const Number at = whole_of(layout, below);
  const int side = compare_with(2 * at.over + 1, at.exponent - 1);
  const bool is_up = side > 0 || (side == 0 && below % 2 != 0);
  return below + (is_up ? 1 : 0) + (std::uint64_t{number.is_negative ? 1U : 0U} << (layout.bits - 1));
}

inline Number product_of(const Number& a, const Number& b) {
  return {a.is_negative != b.is_negative, a.over * b.over, a.under * b.under, a.exponent + b.exponent};
}

/// `b` is a whole number times a power of two, and not 0.
inline Number quotient_of(const Number& a, const Number& b) {
  return {a.is_negative != b.is_negative, a.over, a.under * static_cast<std::uint64_t>(b.over),
          a.exponent - b.exponent};
}

/// Twice what a code stands for.
inline std::int64_t halves_of(CodeType code, std::uint64_t bits) {
  constexpr std::array<std::int64_t, 16> kF4 = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  if (code == CodeType::kF4) return kF4.at(bits);
  if (code == CodeType::kI8 && bits >= 128) return 2 * (static_cast<std::int64_t>(bits) - 256);
  return 2 * static_cast<std::int64_t>(bits);
}

/// A code less its zero points. -0 of F4 stays that if 0 is taken from it.
inline Number value_of_code(CodeType code, std::uint64_t bits, std::uint64_t zero, const std::uint64_t* zero_point) {
  std::int64_t halves = halves_of(code, bits) - 2 * static_cast<std::int64_t>(zero);
  bool is_negative_zero = code == CodeType::kF4 && bits == 8 && zero == 0;
  if (zero_point != nullptr) {
    halves -= halves_of(code, *zero_point);
    is_negative_zero = is_negative_zero && *zero_point == 0;
  }
  return {halves < 0 || (halves == 0 && is_negative_zero), static_cast<std::uint64_t>(std::abs(halves)), 1, -1};
}

}  // namespace lading::device::exact
