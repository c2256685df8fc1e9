// Random: initial values that are the same bits for any sharding, device, thread count and order (R16 to R20).
//
// Element i of a tensor depends on the seed, the tensor's canonical name and i alone: Philox 4x32-10 with a key made of
// seed and name, counter i / 4, word i % 4. A word becomes a number by fixed polynomials in F32 with explicit fma and
// no libm, so that another device can repeat it to the bit; then it is cast once to the storage dtype. docs/random.md
// says all of it; random_word.h is the plain definition. The bits are a promise. Thread-safe, no state; the process's
// random numbers and floating-point modes are neither used nor changed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "lading/result.h"

namespace lading::device {

enum class Distribution : std::uint8_t { kUniform, kNormal, kTruncatedNormal };

struct RandomRecipe {
  Distribution distribution = Distribution::kNormal;
  double mean = 0;  ///< kNormal and kTruncatedNormal
  double std = 1;   ///< of the normal before it is cut; 0: every value is the mean
  double low = 0;   ///< kUniform and kTruncatedNormal, absolute; the latter's may be infinite
  double high = 1;  ///< kUniform stays below it
};

struct RandomKey {
  std::uint64_t value = 0;
};

[[nodiscard]] RandomKey random_key(std::uint64_t seed, std::string_view canonical_name);

enum class SampleKind : std::uint8_t { kConstant, kUniform, kNormal, kTruncatedNormal };

/// For one half of the words of a truncated normal, those on the side of `low` or those on the side of `high`. With c
/// the word's distance from its end of the range, y = y_base + c * slope is twice the probability beyond the value, and
/// x = x_base + (1/2 - c) * slope is 1 - y, accurate where y is not.
struct TruncatedHalf {
  float y_base = 0;
  float x_base = 0;
  float slope = 0;
  float sign = 1;  ///< of the tail that is counted
};

/// A recipe in F32, as host and device kernels use it.
struct SampleParameters {
  SampleKind kind = SampleKind::kConstant;
  float scale = 0;  ///< F32 nearest to std, or to high - low
  float shift = 0;  ///< F32 nearest to mean, or to low; the value, for kConstant
  float least = 0;  ///< values are clamped to [least, most], except kNormal's
  float most = 0;
  std::array<TruncatedHalf, 2> halves = {};
};

/// Refuses what has no meaning in F32: NaN, a negative std, low > high, numbers or a width beyond F32's range.
[[nodiscard]] Result<SampleParameters> prepare_sample(const RandomRecipe& recipe);

/// Elements [first_elem, first_elem + out.size()) of the tensor, row-major.
void sample(const SampleParameters& parameters, RandomKey key, std::uint64_t first_elem, std::span<float> out);

/// The same for a recipe that prepare_sample() accepts.
void sample(const RandomRecipe& recipe, RandomKey key, std::uint64_t first_elem, std::span<float> out);

}  // namespace lading::device
