// One word, one number: the plain definition of everything random, one element at a time.
//
// This is what other implementations must equal bit by bit: the vectors of random.cc, kernels on devices. Every fma is
// written out, nothing else may be fused (-ffp-contract=off), and only operations that IEEE 754 rounds correctly are
// used (+, -, *, /, sqrt, fma, conversions), to nearest. Thread-safe, no state.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "device/host_and_gpu.h"
#include "device/sample_parameters.h"

namespace lading::device {

inline constexpr std::array<std::uint32_t, 2> kPhiloxMultipliers = {0xD2511F53, 0xCD9E8D57};
inline constexpr std::array<std::uint32_t, 2> kPhiloxKeySteps = {0x9E3779B9, 0xBB67AE85};
inline constexpr std::size_t kPhiloxRounds = 10;

/// The upper half of the counter: whose numbers they are, and the version of this definition ("ladi", "ng", 1).
inline constexpr std::array<std::uint32_t, 2> kRandomDomain = {0x6c616469, 0x6e670001};

/// Four words.
[[nodiscard]] constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                                            std::array<std::uint32_t, 2> key) {
  for (std::size_t round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kPhiloxMultipliers[0]} * counter[0];
    const std::uint64_t product1 = std::uint64_t{kPhiloxMultipliers[1]} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key = {key[0] + kPhiloxKeySteps[0], key[1] + kPhiloxKeySteps[1]};
  }
  return counter;
}

/// The words of elements 4 * quad to 4 * quad + 3.
[[nodiscard]] constexpr std::array<std::uint32_t, 4> random_words(RandomKey key, std::uint64_t quad) {
  return philox(
      {static_cast<std::uint32_t>(quad), static_cast<std::uint32_t>(quad >> 32), kRandomDomain[0], kRandomDomain[1]},
      {static_cast<std::uint32_t>(key.value), static_cast<std::uint32_t>(key.value >> 32)});
}

// Fitted by us, the coefficient of the highest power last, each rounded to F32 before the lower ones were fitted.
/// -log(1 + g) / g for 1 + g from sqrt(1/2) to sqrt(2).
inline constexpr std::array<float, 9> kLogFit = {
    -0x1.fffffcp-1F, 0x1.ffffeep-2F,  -0x1.5559bap-2F, 0x1.00089ep-2F,  -0x1.9858f4p-3F,
    0x1.52980cp-3F,  -0x1.349592p-3F, 0x1.2a8a12p-3F,  -0x1.640ff0p-4F,
};
/// quantile / x in powers of w - 5/2, where w = -log(1 - x * x) is from 0 to 5.
inline constexpr std::array<float, 10> kCentreFit = {
    0x1.0fc8bcp+1F,   0x1.652c5cp-2F,   -0x1.832b0cp-8F, -0x1.d06d0ep-10F, 0x1.43c906p-12F,
    -0x1.d70d76p-18F, -0x1.48a1e2p-18F, 0x1.61f094p-21F, 0x1.1a3adcp-25F,  -0x1.ab2c62p-27F,
};
/// quantile / sqrt(w) in powers of 1 / sqrt(w), where w is from 5 to 76.
inline constexpr std::array<float, 9> kTailFit = {
    0x1.6a459cp+0F, -0x1.cff866p-5F, -0x1.726408p+0F, 0x1.1849e6p+2F, -0x1.ad5e9ap+2F,
    0x1.b4b110p+1F, 0x1.661c08p+3F,  -0x1.838648p+4F, 0x1.d12da4p+3F,
};
inline constexpr float kTailBegins = 5.0F;
inline constexpr float kCentreMiddle = 2.5F;
inline constexpr float kMinusLogOf2 = -0x1.62e430p-1F;
inline constexpr std::int32_t kBitsOfRootHalf = 0x3f3504f3;
inline constexpr std::int32_t kMantissaMask = 0x7fffff;

template <std::size_t kCount>
[[nodiscard]] LADING_BOTH inline float polynomial(const std::array<float, kCount>& fit, float at) {
  float sum = fit[kCount - 1];
  for (std::size_t k = kCount - 1; k-- > 0;) sum = std::fma(sum, at, fit[k]);
  return sum;
}

/// Of a positive normal number.
[[nodiscard]] LADING_BOTH inline float minus_log(float number) {
  const std::int32_t moved = std::bit_cast<std::int32_t>(number) - kBitsOfRootHalf;
  const std::int32_t exponent = moved >> 23;
  const float g = std::bit_cast<float>((moved & kMantissaMask) + kBitsOfRootHalf) - 1.0F;
  const float fraction = g * polynomial(kLogFit, g);
  return std::fma(static_cast<float>(exponent), kMinusLogOf2, fraction);
}

/// The normal quantile of probability (1 + x) / 2, where y = 1 - x. Whichever of the two is smaller must be accurate.
[[nodiscard]] LADING_BOTH inline float quantile(float x, float y) {
  const bool is_tail_side = y < 0.5F;
  const float smaller = is_tail_side ? y : x;
  const float w = minus_log(std::fma(-smaller, smaller, is_tail_side ? y + y : 1.0F));  // of 1 - x * x
  if (w > kTailBegins) {
    const float root = std::sqrt(w);
    return root * polynomial(kTailFit, 1.0F / root);
  }
  return x * polynomial(kCentreFit, w - kCentreMiddle);
}

inline constexpr float kTwoToMinus32 = 0x1p-32F;

/// The top bit is the sign; 2 * (the other 31 bits) + 1 is how far from the end, in units of 2^-32.
[[nodiscard]] LADING_BOTH inline float standard_normal(std::uint32_t word) {
  const auto odd = static_cast<std::int32_t>((word << 1) | 1U);
  const float c = static_cast<float>(odd < 0 ? -odd : odd) * kTwoToMinus32;
  const float magnitude = odd < 0 ? quantile(c, 1.0F - c) : quantile(1.0F - c, c);
  return (word >> 31) != 0 ? -magnitude : magnitude;
}

[[nodiscard]] LADING_BOTH inline float standard_truncated_normal(const std::array<TruncatedHalf, 2>& halves,
                                                                 std::uint32_t word) {
  const auto odd = static_cast<std::int32_t>(word | 1U);
  const std::uint32_t from_end = static_cast<std::uint32_t>(odd < 0 ? -odd : odd);
  const std::uint32_t from_middle = 0x80000000U - from_end;
  const TruncatedHalf& half = odd < 0 ? halves[1] : halves[0];
  const float c = static_cast<float>(static_cast<std::int32_t>(from_end)) * kTwoToMinus32;
  const float d = static_cast<float>(static_cast<std::int32_t>(from_middle)) * kTwoToMinus32;
  return half.sign * quantile(std::fma(d, half.slope, half.x_base), std::fma(c, half.slope, half.y_base));
}

[[nodiscard]] LADING_BOTH inline float clamped(const SampleParameters& parameters, float value) {
  const float raised = value < parameters.least ? parameters.least : value;
  return raised > parameters.most ? parameters.most : raised;
}

[[nodiscard]] LADING_BOTH inline float value_of(const SampleParameters& parameters, std::uint32_t word) {
  switch (parameters.kind) {
    case SampleKind::kConstant: return parameters.shift;
    case SampleKind::kUniform: {
      const float unit = static_cast<float>(static_cast<std::int32_t>(word >> 8)) * 0x1p-24F;
      return clamped(parameters, std::fma(unit, parameters.scale, parameters.shift));
    }
    case SampleKind::kNormal: return std::fma(standard_normal(word), parameters.scale, parameters.shift);
    case SampleKind::kTruncatedNormal: break;
  }
  return clamped(parameters,
                 std::fma(standard_truncated_normal(parameters.halves, word), parameters.scale, parameters.shift));
}

/// The same for many words that are given, by the code that sample() uses on this machine. For tests.
void values_of(const SampleParameters& parameters, std::span<const std::uint32_t> words, std::span<float> out);

}  // namespace lading::device
