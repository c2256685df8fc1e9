// For tests: what a quantized element times its scale is, from the definition of the formats. Shares nothing with the
// engine: codes are taken apart by formula, the product is one of whole numbers, and it is rounded once, by whole
// numbers.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "lading/decoding.h"
#include "lading/dtype.h"

namespace lading::test {

__extension__ using Wide = unsigned __int128;

enum class Special : std::uint8_t {
  kNone,     // every code is a number
  kIeee,     // all ones in the exponent: infinity, or NaN
  kOneNan,   // E4M3: only the code with all ones everywhere is NaN
  kFnuz,     // the code of -0 is NaN
  kPowerOf,  // E8M0: nothing but an exponent, whose last code is NaN
};

struct FloatFormat {
  int exponent_bits = 0;
  int mantissa_bits = 0;
  int bias = 0;
  Special special = Special::kIeee;

  [[nodiscard]] int width_bits() const {
    return special == Special::kPowerOf ? exponent_bits : 1 + exponent_bits + mantissa_bits;
  }
};

inline FloatFormat format_of(DType dtype) {
  switch (dtype) {
    case DType::kF8E4M3: return {4, 3, 7, Special::kOneNan};
    case DType::kF8E5M2: return {5, 2, 15, Special::kIeee};
    case DType::kF8E4M3Fnuz: return {4, 3, 8, Special::kFnuz};
    case DType::kF8E5M2Fnuz: return {5, 2, 16, Special::kFnuz};
    case DType::kF8E8M0: return {8, 0, 127, Special::kPowerOf};
    case DType::kF16: return {5, 10, 15, Special::kIeee};
    case DType::kBF16: return {8, 7, 127, Special::kIeee};
    case DType::kF32: return {8, 23, 127, Special::kIeee};
    default: return {11, 52, 1023, Special::kIeee};
  }
}

// mantissa * 2^exponent, exactly; or none such.
struct ExactNumber {
  enum class Kind : std::uint8_t { kFinite, kInfinite, kNan };
  Kind kind = Kind::kFinite;
  bool negative = false;
  Wide mantissa = 0;  // of NaN: its payload, in the bits of the format
  int exponent = 0;
};

inline std::uint64_t ones(int count) { return (std::uint64_t{1} << count) - 1; }
inline int width_of(Wide number) {
  const auto high = static_cast<std::uint64_t>(number >> 64);
  return static_cast<int>(high != 0 ? 64 + std::bit_width(high) : std::bit_width(static_cast<std::uint64_t>(number)));
}

inline ExactNumber value_of(std::uint64_t code, const FloatFormat& format) {
  ExactNumber number;
  if (format.special == Special::kPowerOf) {
    if (code == 0xFF) return {ExactNumber::Kind::kNan, false, 0, 0};
    return {ExactNumber::Kind::kFinite, false, 1, static_cast<int>(code) - format.bias};
  }
  number.negative = (code >> (format.exponent_bits + format.mantissa_bits)) != 0;
  const std::uint64_t magnitude = code & ones(format.exponent_bits + format.mantissa_bits);
  const std::uint64_t exponent = magnitude >> format.mantissa_bits;
  number.mantissa = magnitude & ones(format.mantissa_bits);
  if (format.special == Special::kFnuz && number.negative && magnitude == 0)
    return {ExactNumber::Kind::kNan, false, 0, 0};
  if (format.special == Special::kOneNan && magnitude == ones(format.exponent_bits + format.mantissa_bits))
    number.kind = ExactNumber::Kind::kNan;
  if (format.special == Special::kIeee && exponent == ones(format.exponent_bits))
    number.kind = number.mantissa == 0 ? ExactNumber::Kind::kInfinite : ExactNumber::Kind::kNan;
  if (number.kind != ExactNumber::Kind::kFinite) return number;
  number.exponent = 1 - format.bias - format.mantissa_bits;
  if (exponent > 0) {
    number.mantissa += std::uint64_t{1} << format.mantissa_bits;
    number.exponent += static_cast<int>(exponent) - 1;
  }
  return number;
}

// To nearest, ties to the even code. `to` is one of the IEEE formats; the mantissa has at most 126 bits.
inline std::uint64_t round_to(const ExactNumber& number, const FloatFormat& to) {
  const std::uint64_t sign = std::uint64_t{number.negative} << (to.exponent_bits + to.mantissa_bits);
  const std::uint64_t infinity = ones(to.exponent_bits) << to.mantissa_bits;
  if (number.kind == ExactNumber::Kind::kInfinite) return sign | infinity;
  if (number.mantissa == 0) return sign;
  const int least = 1 - to.bias;  // exponent of the smallest normal number
  const int exponent = std::max(width_of(number.mantissa) - 1 + number.exponent, least);
  const int dropped = exponent - to.mantissa_bits - number.exponent;  // bits below the last place
  Wide kept = 0;
  if (dropped <= 0) {
    kept = number.mantissa << -dropped;
  } else if (dropped <= 127) {
    kept = number.mantissa >> dropped;
    const Wide rest = number.mantissa - (kept << dropped);
    const Wide half = Wide{1} << (dropped - 1);
    if (rest > half || (rest == half && kept % 2 == 1)) ++kept;
  }
  // The hidden bit, if it is there, counts the exponent up by one.
  const std::uint64_t code =
      (static_cast<std::uint64_t>(exponent - least) << to.mantissa_bits) + static_cast<std::uint64_t>(kept);
  return sign | std::min(code, infinity);
}

// Rounded once, or first to the dtype of products.
inline std::uint64_t round_product(ExactNumber product, DType to_dtype, std::optional<DType> product_dtype) {
  if (product_dtype) {
    const FloatFormat between = format_of(*product_dtype);
    product = value_of(round_to(product, between), between);
  }
  return round_to(product, format_of(to_dtype));
}

// The element's code in `to`, rounded once, or first to the dtype of products. A payload that is NaN is cast as it is:
// sign, and payload in the top bits, quiet (docs/how-it-works/casts.md). The scale is finite.
inline std::uint64_t dequantized_code(std::uint64_t payload, DType payload_dtype, std::uint64_t scale,
                                      DType scale_dtype, DType to_dtype, std::optional<DType> product_dtype = {}) {
  const FloatFormat from = format_of(payload_dtype);
  const FloatFormat to = format_of(to_dtype);
  const ExactNumber a = value_of(payload, from);
  const ExactNumber b = value_of(scale, format_of(scale_dtype));
  const std::uint64_t quiet = ((ones(to.exponent_bits) << 1) + 1) << (to.mantissa_bits - 1);
  if (a.kind == ExactNumber::Kind::kNan) {
    const std::uint64_t sign = std::uint64_t{a.negative} << (to.exponent_bits + to.mantissa_bits);
    return sign | quiet | (static_cast<std::uint64_t>(a.mantissa) << (to.mantissa_bits - from.mantissa_bits));
  }
  if (a.kind == ExactNumber::Kind::kInfinite && b.mantissa == 0) return quiet;
  ExactNumber product = a;
  product.negative = a.negative != b.negative;
  product.mantissa = a.mantissa * b.mantissa;
  product.exponent = a.exponent + b.exponent;
  return round_product(product, to_dtype, product_dtype);
}

// What a packed code stands for, in halves: those of F4 are multiples of 0.5. A code of zero may have a sign.
struct CodeNumber {
  bool negative = false;
  std::uint64_t halves = 0;
};

inline CodeNumber number_of_code(std::uint64_t code, CodeType type) {
  switch (type) {
    case CodeType::kF4: {  // a sign, two bits of exponent, one of mantissa; no infinity, no NaN
      const ExactNumber number = value_of(code, {2, 1, 1, Special::kNone});
      return {number.negative, static_cast<std::uint64_t>(number.mantissa) << (number.exponent + 1)};
    }
    case CodeType::kI8: return code < 128 ? CodeNumber{false, 2 * code} : CodeNumber{true, 2 * (256 - code)};
    default: return {false, 2 * code};
  }
}

// Everything that one element of packed codes is made of.
struct PackedElement {
  CodeNumber code;
  std::int64_t zero = 0;  // that is subtracted, in all
  ExactNumber scale;
  std::optional<ExactNumber> tensor_scale = {};
  TensorScale tensor_scale_is = TensorScale::kFactor;
};

// The exact number but for a divisor: then it is one that rounds as the exact one does. Its last bit says whether the
// exact number is larger, and stands far below the last place of every dtype.
inline ExactNumber value_of(const PackedElement& element) {
  const std::int64_t code = static_cast<std::int64_t>(element.code.halves) * (element.code.negative ? -1 : 1);
  const std::int64_t halves = code - 2 * element.zero;
  ExactNumber value;
  value.negative = halves < 0 || (halves == 0 && element.code.negative && element.zero == 0);
  value.negative = value.negative != element.scale.negative;
  value.mantissa = static_cast<std::uint64_t>(halves < 0 ? -halves : halves) * element.scale.mantissa;
  value.exponent = element.scale.exponent - 1;
  if (!element.tensor_scale) return value;
  value.negative = value.negative != element.tensor_scale->negative;
  if (element.tensor_scale_is == TensorScale::kFactor) {
    value.mantissa *= element.tensor_scale->mantissa;
    value.exponent += element.tensor_scale->exponent;
    return value;
  }
  const int up = 124 - width_of(value.mantissa);
  const Wide dividend = value.mantissa << up;
  const Wide quotient = dividend / element.tensor_scale->mantissa;
  value.mantissa = 2 * quotient + (quotient * element.tensor_scale->mantissa == dividend ? 0U : 1U);
  value.exponent -= element.tensor_scale->exponent + up + 1;
  return value;
}

inline std::uint64_t packed_code(const PackedElement& element, DType to, std::optional<DType> product = {}) {
  return round_product(value_of(element), to, product);
}

// Little-endian, as in files and in memory.
inline void append_code(std::string& bytes, std::uint64_t code, DType dtype) {
  for (unsigned i = 0; i < bits(dtype) / 8; ++i) bytes += static_cast<char>(code >> (8 * i) & 0xFF);
}

inline std::uint64_t code_at(const char* bytes, std::uint64_t elem, DType dtype) {
  const unsigned width = bits(dtype) / 8;
  std::uint64_t code = 0;
  std::memcpy(&code, bytes + elem * width, width);
  return code;
}

}  // namespace lading::test
