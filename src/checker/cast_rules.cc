#include "checker/cast_rules.h"

#include <optional>

namespace lading::checker {
namespace {

// Between these a cast is one rounding. Packed elements and the scales of blocks stay what they are
// (docs/how-it-works/dtype-contract.md).
bool is_cast_float(DType dtype) {
  switch (dtype) {
    case DType::kF8E5M2:
    case DType::kF8E4M3:
    case DType::kF8E4M3Fnuz:
    case DType::kF8E5M2Fnuz:
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
    case DType::kF64: return true;
    default: return false;
  }
}

// Bits of the magnitude that an integer dtype holds, and whether it holds signs; nothing of other dtypes.
struct IntegerRange {
  unsigned magnitude_bits = 0;
  bool is_signed = false;
};
std::optional<IntegerRange> integer_range(DType dtype) {
  switch (dtype) {
    case DType::kU8: return IntegerRange{8, false};
    case DType::kU16: return IntegerRange{16, false};
    case DType::kU32: return IntegerRange{32, false};
    case DType::kU64: return IntegerRange{64, false};
    case DType::kI8: return IntegerRange{7, true};
    case DType::kI16: return IntegerRange{15, true};
    case DType::kI32: return IntegerRange{31, true};
    case DType::kI64: return IntegerRange{63, true};
    default: return std::nullopt;
  }
}

}  // namespace

bool cast_is_sound(DType from, DType to) {
  if (from == to || (is_cast_float(from) && is_cast_float(to))) return true;
  const auto held = integer_range(from);
  const auto holds = integer_range(to);
  if (!held || !holds) return false;
  return held->magnitude_bits <= holds->magnitude_bits && (holds->is_signed || !held->is_signed);
}

bool is_eight_bit_float(DType dtype) { return is_cast_float(dtype) && bits(dtype) == 8; }

// At most 4 significant bits of a payload, or 17 of a code less its zeros, times at most 24, in exponents that F64 has.
bool scaling_is_sound(DType scales, DType to) {
  switch (scales) {
    case DType::kF8E8M0:
    case DType::kF8E4M3:
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32: return is_cast_float(to) && bits(to) >= 16;
    default: return false;
  }
}

bool is_rounding_sound(DType product) { return is_cast_float(product) && bits(product) >= 16; }

}  // namespace lading::checker
