// Casts of one element, for kernels: the same bits as device/cast.h gives (docs/how-it-works/casts.md).
//
// Integer arithmetic with one rounding for every pair, no floating-point instruction, so that nothing depends on how a
// GPU treats subnormals. Formats may be known when compiling, where most of it folds away, or when running. Constants
// and pure functions, thread-safe.
#pragma once

#include <cstdint>

#include "device/cast_format.h"
#include "device/host_and_gpu.h"

namespace lading::device::cuda {

/// Bytes of an element; packed dtypes count as bytes.
[[nodiscard]] LADING_BOTH constexpr unsigned element_bytes(DType dtype) {
  switch (dtype) {
    case DType::kI16:
    case DType::kU16:
    case DType::kF16:
    case DType::kBF16: return 2;
    case DType::kI32:
    case DType::kU32:
    case DType::kF32: return 4;
    case DType::kC64:
    case DType::kF64:
    case DType::kI64:
    case DType::kU64: return 8;
    default: return 1;
  }
}

/// A magnitude of the target that was rounded as if exponents had no end. `Bits` is wide enough for both formats.
template <class Bits>
[[nodiscard]] LADING_BOTH constexpr Bits finish_magnitude(const Format& to, Bits sign, Bits rounded) {
  const auto sign_bit = static_cast<Bits>(to.sign());
  if (to.family == Family::kFnuz) {
    if (rounded >= sign_bit) return sign_bit;
    return rounded == 0 ? 0 : sign | rounded;
  }
  const Bits most = to.family == Family::kIeee ? static_cast<Bits>(to.infinity()) : sign_bit - 2;
  return sign | (rounded < most ? rounded : most);
}

/// A NaN with the top bits of `fraction`, which has as many bits as the mantissa of `from`.
template <class Bits>
[[nodiscard]] LADING_BOTH constexpr Bits nan_of(const Format& from, const Format& to, Bits sign, Bits fraction) {
  if (to.family == Family::kFnuz) return static_cast<Bits>(to.sign());
  if (to.family == Family::kFn) return sign | static_cast<Bits>(to.sign() - 1);
  const Bits payload = from.mantissa_bits > to.mantissa_bits ? fraction >> (from.mantissa_bits - to.mantissa_bits)
                                                             : fraction << (to.mantissa_bits - from.mantissa_bits);
  return sign | static_cast<Bits>(to.infinity() | to.quiet()) | payload;
}

[[nodiscard]] LADING_BOTH constexpr int leading_zeros(std::uint32_t number) { return __builtin_clz(number); }
[[nodiscard]] LADING_BOTH constexpr int leading_zeros(std::uint64_t number) { return __builtin_clzll(number); }

/// number / 2^dropped, to nearest, ties to even. At least one bit is dropped.
template <class Bits>
[[nodiscard]] LADING_BOTH constexpr Bits shifted_to_nearest(Bits number, int dropped) {
  const Bits odd = (number >> dropped) & 1;
  return (number + ((Bits{1} << (dropped - 1)) - 1) + odd) >> dropped;
}

/// One code of `from` as a code of `to`. `Bits` is std::uint64_t if one of them is F64, otherwise it may be
/// std::uint32_t.
template <class Bits>
[[nodiscard]] LADING_BOTH constexpr Bits cast_float(const Format& from, const Format& to, Bits code) {
  const auto from_sign = static_cast<Bits>(from.sign());
  const Bits magnitude = code & (from_sign - 1);
  const Bits fraction = magnitude & static_cast<Bits>(from.smallest_normal() - 1);
  const Bits sign = magnitude != code ? static_cast<Bits>(to.sign()) : 0;
  const int dropped = static_cast<int>(from.mantissa_bits) - static_cast<int>(to.mantissa_bits);

  if (from.family == Family::kFnuz) {
    if (code == from_sign) return nan_of<Bits>(from, to, 0, 0);
  } else if (from.family == Family::kFn) {
    if (magnitude == from_sign - 1) return nan_of(from, to, sign, fraction);
  } else {
    const auto infinity = static_cast<Bits>(from.infinity());
    if (magnitude > infinity) return nan_of(from, to, sign, fraction);
    if (to.family == Family::kIeee && from.exponent_bits == to.exponent_bits) {
      // F32 and BF16, F16 and F8_E5M2: the upper bits of one are the other. A carry makes Inf of the largest numbers.
      return sign | (dropped > 0 ? shifted_to_nearest(magnitude, dropped) : magnitude << -dropped);
    }
    if (magnitude == infinity) return finish_magnitude(to, sign, static_cast<Bits>(to.sign()));
  }
  if (magnitude == 0) return finish_magnitude<Bits>(to, sign, 0);

  // The number is significand * 2^(exponent - from.bias - from.mantissa_bits), the significand with its leading 1.
  int exponent = static_cast<int>(magnitude >> from.mantissa_bits);
  Bits significand = fraction | static_cast<Bits>(from.smallest_normal());
  if (exponent == 0) {
    const int up = leading_zeros(fraction) - static_cast<int>(8 * sizeof(Bits) - 1 - from.mantissa_bits);
    significand = fraction << up;
    exponent = 1 - up;
  }
  // Below the smallest normal number of the target, more bits of the significand go; two more than all is enough.
  const int to_exponent = exponent - from.bias + to.bias;
  const int held = to_exponent > 1 ? to_exponent : 1;
  const int down = dropped + held - to_exponent;
  const int most_down = static_cast<int>(from.mantissa_bits) + 2;
  const Bits rounded =
      down > 0 ? shifted_to_nearest(significand, down < most_down ? down : most_down) : significand << -down;
  // The leading 1, and a carry out of the significand, go into the exponent by themselves.
  return finish_magnitude(to, sign, rounded + (static_cast<Bits>(held - 1) << to.mantissa_bits));
}

/// How a cast is done that is known only when running.
enum class CastKind : std::uint8_t { kCarry, kExtendSign, kFloat, kFloat64 };

struct CastRecipe {
  CastKind kind = CastKind::kCarry;
  unsigned from_bits = 0;
  Format from = {};
  Format to = {};
};

/// For pairs that find_cast() knows, and equal dtypes.
[[nodiscard]] LADING_BOTH constexpr CastRecipe cast_recipe(DType from, DType to) {
  CastRecipe recipe;
  recipe.from_bits = 8 * element_bytes(from);
  if (from == to) return recipe;
  if (from == DType::kI8 || from == DType::kI16 || from == DType::kI32) {
    recipe.kind = CastKind::kExtendSign;
    return recipe;
  }
  for (const Format& format : kFormats) {
    if (format.dtype == from) recipe.from = format;
    if (format.dtype == to) recipe.to = format;
  }
  if (recipe.from.bits() > 1) {
    recipe.kind = from == DType::kF64 || to == DType::kF64 ? CastKind::kFloat64 : CastKind::kFloat;
  }
  return recipe;  // unsigned integers: the bits above are 0
}

/// For recipes of one kind: a loop over elements has room for one in its registers.
template <CastKind kKind>
[[nodiscard]] LADING_BOTH constexpr std::uint64_t cast_element(const CastRecipe& recipe, std::uint64_t code) {
  if constexpr (kKind == CastKind::kFloat) {
    return cast_float(recipe.from, recipe.to, static_cast<std::uint32_t>(code));
  } else if constexpr (kKind == CastKind::kFloat64) {
    return cast_float(recipe.from, recipe.to, code);
  } else if constexpr (kKind == CastKind::kExtendSign) {
    const std::uint64_t sign = std::uint64_t{1} << (recipe.from_bits - 1);
    return (code ^ sign) - sign;
  } else {
    return code;
  }
}

}  // namespace lading::device::cuda
