#include "device/cast.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "device/cast_float.h"
#include "lading/result.h"

namespace lading::device {
namespace {

static_assert(std::endian::native == std::endian::little, "files and memory are little-endian");

template <class From, class To>
void widen(const std::byte* source, std::byte* target, std::size_t elems) {
  for (std::size_t i = 0; i < elems; ++i) {
    From value;
    std::memcpy(&value, source + i * sizeof(From), sizeof(From));
    const To wider = static_cast<To>(value);  // NOLINT(bugprone-signed-char-misuse): I8 is a number here
    std::memcpy(target + i * sizeof(To), &wider, sizeof(To));
  }
}

struct Widening {
  DType from;
  DType to;
  Cast cast;
};

constexpr std::array kWidenings = {
    Widening{DType::kI8, DType::kI16, widen<std::int8_t, std::int16_t>},
    Widening{DType::kI8, DType::kI32, widen<std::int8_t, std::int32_t>},
    Widening{DType::kI8, DType::kI64, widen<std::int8_t, std::int64_t>},
    Widening{DType::kI16, DType::kI32, widen<std::int16_t, std::int32_t>},
    Widening{DType::kI16, DType::kI64, widen<std::int16_t, std::int64_t>},
    Widening{DType::kI32, DType::kI64, widen<std::int32_t, std::int64_t>},
    Widening{DType::kU8, DType::kI16, widen<std::uint8_t, std::int16_t>},
    Widening{DType::kU8, DType::kU16, widen<std::uint8_t, std::uint16_t>},
    Widening{DType::kU8, DType::kI32, widen<std::uint8_t, std::int32_t>},
    Widening{DType::kU8, DType::kU32, widen<std::uint8_t, std::uint32_t>},
    Widening{DType::kU8, DType::kI64, widen<std::uint8_t, std::int64_t>},
    Widening{DType::kU8, DType::kU64, widen<std::uint8_t, std::uint64_t>},
    Widening{DType::kU16, DType::kI32, widen<std::uint16_t, std::int32_t>},
    Widening{DType::kU16, DType::kU32, widen<std::uint16_t, std::uint32_t>},
    Widening{DType::kU16, DType::kI64, widen<std::uint16_t, std::int64_t>},
    Widening{DType::kU16, DType::kU64, widen<std::uint16_t, std::uint64_t>},
    Widening{DType::kU32, DType::kI64, widen<std::uint32_t, std::int64_t>},
    Widening{DType::kU32, DType::kU64, widen<std::uint32_t, std::uint64_t>},
};

std::uint64_t float_bits(double value, DType dtype) {
  std::array<std::byte, sizeof(double)> source;
  std::memcpy(source.data(), &value, sizeof(value));
  std::uint64_t bits = 0;
  find_float_cast(DType::kF64, dtype)(source.data(), reinterpret_cast<std::byte*>(&bits), 1);
  return bits;
}

// F8_E8M0 is a bare exponent: 2^(code - 127), with NaN at the top. Nearest in mantissa, halves up, as PyTorch has it.
std::uint64_t exponent_bits(double value) {
  constexpr std::int64_t kNan = 0xFF;
  if (!(value >= 0)) return kNan;
  const auto bits = static_cast<std::int64_t>(std::bit_cast<std::uint64_t>(value));
  const std::int64_t code = ((bits + (std::int64_t{1} << 51)) >> 52) - 1023 + 127;
  return static_cast<std::uint64_t>(code < 0 ? 0 : (code > kNan ? kNan : code));
}

std::uint64_t integer_bits(double value, DType dtype) {
  if (class_of(dtype) == DTypeClass::kUnsigned) return static_cast<std::uint64_t>(value);
  const auto all = static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
  return bits(dtype) == 64 ? all : all & ((std::uint64_t{1} << bits(dtype)) - 1);
}

}  // namespace

Cast find_cast(DType from, DType to) {
  for (const Widening& widening : kWidenings) {
    if (widening.from == from && widening.to == to) return widening.cast;
  }
  return find_float_cast(from, to);
}

bool has_bits_for(double value, DType dtype) {
  if (bits(dtype) < 8) return value == 0;
  const DTypeClass dtype_class = class_of(dtype);
  const bool is_signed = dtype_class == DTypeClass::kSigned;
  if (!is_signed && dtype_class != DTypeClass::kUnsigned) return true;
  const double limit = std::ldexp(1.0, static_cast<int>(bits(dtype)) - (is_signed ? 1 : 0));
  return std::isfinite(value) && value < limit && value >= (is_signed ? -limit : 0);
}

std::uint64_t bits_of(double value, DType dtype) {
  if (bits(dtype) < 8) {
    LADING_CHECK(value == 0);  // the planner refuses others
    return 0;
  }
  switch (class_of(dtype)) {
    case DTypeClass::kBool: return value != 0 ? 1 : 0;
    case DTypeClass::kUnsigned:
    case DTypeClass::kSigned: return integer_bits(value, dtype);
    case DTypeClass::kComplex: return float_bits(value, DType::kF32);  // the imaginary part, 0, stands above it
    case DTypeClass::kFloat: break;
  }
  if (dtype == DType::kF8E8M0) return exponent_bits(value);
  return dtype == DType::kF64 ? std::bit_cast<std::uint64_t>(value) : float_bits(value, dtype);
}

}  // namespace lading::device
