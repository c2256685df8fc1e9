// What a cast should give, said a second time for tests, and shared by no code with the casts.
//
// Values are doubles, which hold every value of the narrower formats and every midpoint between two of them. The
// target's code is searched for by value: the nearest one, the even one of two. No bit is shifted to round. Needs the
// default floating-point environment. A Nearest keeps where it last was, so it is for one thread; the rest has no
// state.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "lading/dtype.h"

namespace lading::device::reference {

enum class Overflow : std::uint8_t { kInfinity, kLargest, kNan };

struct Layout {
  DType dtype;
  unsigned bits;
  unsigned mantissa_bits;
  int bias;
  std::uint64_t largest;  ///< the code of the largest finite number
  Overflow overflow;
};

// Written down from the formats' papers, number by number.
inline constexpr std::array kLayouts = {
    Layout{DType::kF8E5M2, 8, 2, 15, 0x7B, Overflow::kInfinity},
    Layout{DType::kF8E4M3, 8, 3, 7, 0x7E, Overflow::kLargest},
    Layout{DType::kF8E4M3Fnuz, 8, 3, 8, 0x7F, Overflow::kNan},
    Layout{DType::kF8E5M2Fnuz, 8, 2, 16, 0x7F, Overflow::kNan},
    Layout{DType::kF16, 16, 10, 15, 0x7BFF, Overflow::kInfinity},
    Layout{DType::kBF16, 16, 7, 127, 0x7F7F, Overflow::kInfinity},
    Layout{DType::kF32, 32, 23, 127, 0x7F7FFFFF, Overflow::kInfinity},
    Layout{DType::kF64, 64, 52, 1023, 0x7FEFFFFFFFFFFFFF, Overflow::kInfinity},
};

inline const Layout& layout_of(DType dtype) {
  for (const Layout& layout : kLayouts) {
    if (layout.dtype == dtype) return layout;
  }
  std::abort();
}

/// The value of a code without sign; one past the largest gives what would follow if there were exponents left.
inline double value_of(const Layout& layout, std::uint64_t code) {
  const std::uint64_t ones = std::uint64_t{1} << layout.mantissa_bits;
  const auto exponent = static_cast<int>(code / ones);
  const auto fraction = static_cast<double>(code % ones);
  const int scale = 1 - layout.bias - static_cast<int>(layout.mantissa_bits);
  if (exponent == 0) return std::ldexp(fraction, scale);
  return std::ldexp(static_cast<double>(ones) + fraction, scale + exponent - 1);
}

struct Number {
  enum class Kind : std::uint8_t { kFinite, kInfinite, kNan };
  Kind kind = Kind::kFinite;
  std::uint64_t negative = 0;  ///< 0 or 1
  double magnitude = 0;        ///< of kFinite
  std::uint64_t payload = 0;   ///< of kNan: the mantissa, as if it had 52 bits
};

inline Number read(const Layout& layout, std::uint64_t code) {
  Number number;
  const std::uint64_t half = std::uint64_t{1} << (layout.bits - 1);
  if (layout.overflow == Overflow::kNan && code == half) {
    number.kind = Number::Kind::kNan;
    return number;
  }
  number.negative = code / half;
  const std::uint64_t magnitude = code % half;
  if (magnitude <= layout.largest) {
    // The two that C++ knows are read by it.
    if (layout.dtype == DType::kF64) {
      number.magnitude = std::bit_cast<double>(magnitude);
    } else if (layout.dtype == DType::kF32) {
      number.magnitude = static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(magnitude)));
    } else {
      number.magnitude = value_of(layout, magnitude);
    }
    return number;
  }
  const std::uint64_t ones = std::uint64_t{1} << layout.mantissa_bits;
  if (layout.overflow == Overflow::kInfinity && magnitude % ones == 0) {
    number.kind = Number::Kind::kInfinite;
    return number;
  }
  number.kind = Number::Kind::kNan;
  number.payload = magnitude % ones * ((std::uint64_t{1} << 52) / ones);
  return number;
}

/// Finds the nearest code of one target. Remembers the stretch of values that its last answer holds for.
class Nearest {
 public:
  explicit Nearest(const Layout& to) : to_(to) {}

  /// Of a finite number, 0 or more; largest + 1 and only that on overflow.
  std::uint64_t code(double value) {
    if (value > low_ && value < high_) return code_;
    std::uint64_t below = 0;  // the largest code whose value is not above `value`
    std::uint64_t above = to_.largest + 1;
    if (value >= value_of(to_, above)) return above;
    while (above - below > 1) {
      const std::uint64_t middle = below + (above - below) / 2;
      (value_of(to_, middle) <= value ? below : above) = middle;
    }
    const double midpoint = between(below);
    if (value == midpoint) return below % 2 == 0 ? below : above;
    code_ = value < midpoint ? below : above;
    low_ = code_ == 0 ? -1 : between(code_ - 1);
    high_ = code_ > to_.largest ? std::numeric_limits<double>::infinity() : between(code_);
    return code_;
  }

  [[nodiscard]] const Layout& layout() const { return to_; }

 private:
  // Exact: the sum of two neighbours needs one bit more than they have, and none of them is F64.
  double between(std::uint64_t code) const { return (value_of(to_, code) + value_of(to_, code + 1)) / 2; }

  Layout to_;
  std::uint64_t code_ = 0;
  double low_ = 0;  // an empty stretch
  double high_ = 0;
};

inline std::uint64_t nan_code(const Layout& to, const Number& number) {
  const std::uint64_t sign = number.negative << (to.bits - 1);
  if (to.overflow == Overflow::kNan) return 0x80;
  if (to.overflow == Overflow::kLargest) return sign + to.largest + 1;
  const std::uint64_t ones = std::uint64_t{1} << to.mantissa_bits;
  const std::uint64_t kept = number.payload / ((std::uint64_t{1} << 52) / ones);
  return sign + to.largest + 1 + (kept | ones / 2);
}

inline std::uint64_t write(Nearest& nearest, const Number& number) {
  const Layout& to = nearest.layout();
  if (number.kind == Number::Kind::kNan) return nan_code(to, number);
  const std::uint64_t sign = number.negative << (to.bits - 1);
  std::uint64_t code = to.largest + 1;
  if (number.kind == Number::Kind::kFinite) {
    if (to.dtype == DType::kF64) return sign + std::bit_cast<std::uint64_t>(number.magnitude);
    code = nearest.code(number.magnitude);
  }
  if (code > to.largest) {
    if (to.overflow == Overflow::kNan) return 0x80;
    if (to.overflow == Overflow::kLargest) return sign + to.largest;
    return sign + to.largest + 1;  // Inf follows the largest number
  }
  return to.overflow == Overflow::kNan && code == 0 ? 0 : sign + code;
}

}  // namespace lading::device::reference
