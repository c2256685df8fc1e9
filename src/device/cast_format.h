// Format: what the bits of a floating element mean. The one table that the casts are made from.
//
// A code is a sign bit, then `exponent_bits` of exponent, then `mantissa_bits`. Exponent 0 holds zero and the
// subnormals. Only what lies above the finite codes differs between the families. Constants, no state.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "lading/dtype.h"

namespace lading::device {

enum class Family : std::uint8_t {
  kIeee,  ///< the top exponent holds Inf and NaN
  kFn,    ///< the top code is NaN, there is no Inf, and overflow saturates, as in PyTorch
  kFnuz,  ///< no Inf, no -0: its code 0x80 is the only NaN, and overflow becomes that
};

struct Format {
  DType dtype;
  unsigned mantissa_bits;
  unsigned exponent_bits;
  int bias;
  Family family;

  [[nodiscard]] constexpr unsigned bits() const { return 1 + exponent_bits + mantissa_bits; }
  [[nodiscard]] constexpr std::uint64_t sign() const { return std::uint64_t{1} << (bits() - 1); }
  /// The lowest code with exponent 1: all below it are subnormal or zero.
  [[nodiscard]] constexpr std::uint64_t smallest_normal() const { return std::uint64_t{1} << mantissa_bits; }
  /// The code of +Inf; of kIeee only.
  [[nodiscard]] constexpr std::uint64_t infinity() const { return sign() - smallest_normal(); }
  /// The bit that makes a NaN a quiet one; of kIeee only.
  [[nodiscard]] constexpr std::uint64_t quiet() const { return smallest_normal() >> 1; }
};

inline constexpr std::array kFormats = {
    Format{DType::kF8E5M2, 2, 5, 15, Family::kIeee},    Format{DType::kF8E4M3, 3, 4, 7, Family::kFn},
    Format{DType::kF8E4M3Fnuz, 3, 4, 8, Family::kFnuz}, Format{DType::kF8E5M2Fnuz, 2, 5, 16, Family::kFnuz},
    Format{DType::kF16, 10, 5, 15, Family::kIeee},      Format{DType::kBF16, 7, 8, 127, Family::kIeee},
    Format{DType::kF32, 23, 8, 127, Family::kIeee},     Format{DType::kF64, 52, 11, 1023, Family::kIeee},
};

/// Its place in kFormats; kFormats.size() if it is not there.
[[nodiscard]] constexpr std::size_t format_index(DType dtype) {
  std::size_t i = 0;
  while (i < kFormats.size() && kFormats[i].dtype != dtype) ++i;
  return i;
}

}  // namespace lading::device
