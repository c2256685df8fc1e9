// In which order element, scale and scale of the tensor are multiplied, on the host and on GPUs. Pure.
#pragma once

#include <cstdint>

#include "device/host_and_gpu.h"

namespace lading::device {

/// What is done with the scale of the tensor. Each gives the true product or quotient, rounded once to the first dtype
/// that it is rounded to.
enum class TensorStep : std::uint32_t {
  /// It is 1.
  kNone,
  /// Times the scale of the block, which is exact: 24 bits times 24. The element times that is exact as well, or is
  /// rounded to F64 and no further.
  kTimesScale,
  /// The same with more bits than F64 has; the product is rounded to odd, so that the next rounding is the only one.
  kTimesScaleToOdd,
  /// The scale of the block is divided by it first, the element is multiplied by the rounded quotient. For F4, and
  /// results of 24 bits or fewer. The true quotient, of a product of 26 bits and a number of 24, either is a midpoint
  /// of two results, which has 25 bits, or differs from all of them by 2^-49 of itself or more, which two roundings to
  /// F64 cannot bridge. And if it is a midpoint, it comes out as one: magnitudes of F4 are 1 or 3 times a power of two,
  /// and (m / n) * n == m also in rounded arithmetic where n is the sum of two powers of two, and m is short.
  kDividesScale,
  /// The product is divided by it. The quotient of 41 and 24 bits is a midpoint of two results, or as far from all.
  kDividesProduct,
};

/// a / b, rounded once, by multiplications, because GPUs have no division and compilers call a function for it. The
/// last step rounds correctly if the one before it is off by less than its last bit, and the reciprocal is 1 / b
/// rounded once (Markstein). Nothing may be too large or too small for F64, but 0 and infinity may be divided.
[[nodiscard]] LADING_BOTH inline double quotient(double a, double b, double reciprocal) {
  double result = a * reciprocal;
  if (result == 0 || result - result != 0) return result;
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) result = __builtin_fma(__builtin_fma(-result, b, a), reciprocal, result);
  return result;
}

/// The product, or, if it is not exact, that of its two neighbours whose last bit is 1: a rounding to 51 bits or fewer
/// then sees on which side of a midpoint it was.
[[nodiscard]] LADING_BOTH inline double product_to_odd(double a, double b) {
  const double product = a * b;
  const double rest = __builtin_fma(a, b, -product);
  const auto bits = __builtin_bit_cast(std::uint64_t, product);
  if (rest == 0 || bits % 2 != 0) return product;
  return __builtin_bit_cast(double, (rest < 0) == (product < 0) ? bits + 1 : bits - 1);
}

}  // namespace lading::device
