// What a code stands for, on the host and on GPUs. Constants and pure functions.
#pragma once

#include <cstdint>

#include "device/host_and_gpu.h"
#include "lading/decoding.h"

namespace lading::device {

/// In F32, which is exact. `bits` are those of one code, the others 0.
[[nodiscard]] LADING_BOTH constexpr float code_value(CodeType code, std::uint32_t bits) {
  if (code == CodeType::kI8) return static_cast<float>(static_cast<int>(bits ^ 0x80) - 0x80);
  if (code != CodeType::kF4) return static_cast<float>(bits);
  // A sign, two bits of exponent, one of mantissa.
  const std::uint32_t exponent = bits >> 1 & 3;
  const std::uint32_t halves = exponent == 0 ? bits & 1 : (2 | (bits & 1)) << (exponent - 1);
  const float magnitude = static_cast<float>(halves) * 0.5F;
  return (bits & 8) != 0 ? -magnitude : magnitude;
}

/// 0, 1 or 2: the codes of a byte, as a power of two.
[[nodiscard]] LADING_BOTH constexpr std::uint32_t log2_codes_in_byte(CodeType code) {
  if (code == CodeType::kU2) return 2;
  return code == CodeType::kF4 || code == CodeType::kU4 ? 1 : 0;
}

}  // namespace lading::device
