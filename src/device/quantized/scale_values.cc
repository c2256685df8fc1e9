#include "device/quantized/scale_values.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "device/cast.h"
#include "device/quantized/code_value.h"
#include "lading/result.h"

namespace lading::device {
namespace {

constexpr unsigned kDoubleBits = 53;
constexpr unsigned kTensorScaleBits = 24;

// Significant bits that a scale may have.
unsigned scale_bits(DType dtype) {
  switch (dtype) {
    case DType::kF8E8M0: return 1;
    case DType::kF8E4M3: return 4;
    case DType::kBF16: return 8;
    case DType::kF16: return 11;
    default: return kTensorScaleBits;
  }
}

// Those that an element may have before it is multiplied.
unsigned element_bits(const BlockScales& scales) {
  if (!scales.code) return 4;
  if (*scales.code == CodeType::kF4) {
    if (scales.zero == 0 && scales.zeros.empty()) return 2;
    return static_cast<unsigned>(std::bit_width(2 * scales.zero + 24));  // in halves
  }
  const std::uint64_t most = (std::uint64_t{1} << bits(*scales.code)) - 1;
  return static_cast<unsigned>(std::bit_width(scales.zero + (scales.zeros.empty() ? 1 : 2) * most));
}

// 2^(code - 127), and NaN for the last code.
double value_of_e8m0(std::byte code) {
  const auto number = std::to_integer<std::uint64_t>(code);
  const double power = std::bit_cast<double>((number + (1023 - 127)) << 52);
  return number == 0xFF ? std::numeric_limits<double>::quiet_NaN() : power;
}

}  // namespace

void widen_scales(const std::byte* stored, DType dtype, std::span<double> out) {
  if (dtype == DType::kF8E8M0) {
    std::transform(stored, stored + out.size(), out.begin(), value_of_e8m0);
  } else if (dtype == DType::kF64) {
    std::copy_n(stored, out.size_bytes(), reinterpret_cast<std::byte*>(out.data()));
  } else {
    find_cast(dtype, DType::kF64)(stored, reinterpret_cast<std::byte*>(out.data()), out.size());
  }
}

void scales_at(const BlockScales& scales, std::uint64_t first, std::span<double> out) {
  const std::uint64_t width_bytes = bits(scales.dtype) / 8;
  LADING_CHECK((first + out.size()) * width_bytes <= scales.values.size());
  widen_scales(scales.values.data() + first * width_bytes, scales.dtype, out);
}

std::uint64_t scale_count(const BlockScales& scales) { return scales.values.size() * 8 / bits(scales.dtype); }

TensorStep tensor_step(const BlockScales& scales, DType to) {
  if (scales.tensor_scale == 1) return TensorStep::kNone;
  const bool is_double = scales.product.value_or(to) == DType::kF64;
  if (scales.tensor_scale_is == TensorScale::kDivisor) {
    const bool is_plain_f4 = scales.code == CodeType::kF4 && scales.zero == 0 && scales.zeros.empty();
    return is_plain_f4 && !is_double ? TensorStep::kDividesScale : TensorStep::kDividesProduct;
  }
  const unsigned all_bits = element_bits(scales) + scale_bits(scales.dtype) + kTensorScaleBits;
  return is_double || all_bits <= kDoubleBits ? TensorStep::kTimesScale : TensorStep::kTimesScaleToOdd;
}

}  // namespace lading::device
