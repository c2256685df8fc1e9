// Random: initial values that are the same bits for any sharding, device, thread count and order (R16 to R20).
//
// Element i of a tensor depends on the seed, the tensor's canonical name and i alone: Philox 4x32-10 with a key made of
// seed and name, counter i / 4, word i % 4. A word becomes a number by fixed polynomials in F32 with explicit fma and
// no libm, so that another device can repeat it to the bit; then it is cast once to the storage dtype.
// docs/how-it-works/random.md says all of it; random_word.h is the plain definition. The bits are a promise.
// Thread-safe, no state; the process's random numbers and floating-point modes are neither used nor changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "device/sample_parameters.h"
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

[[nodiscard]] RandomKey random_key(std::uint64_t seed, std::string_view canonical_name);

/// Refuses what has no meaning in F32: NaN, a negative std, low > high, numbers or a width beyond F32's range.
[[nodiscard]] Result<SampleParameters> prepare_sample(const RandomRecipe& recipe);

/// Elements [first_elem, first_elem + out.size()) of the tensor, row-major.
void sample(const SampleParameters& parameters, RandomKey key, std::uint64_t first_elem, std::span<float> out);

/// The same for a recipe that prepare_sample() accepts.
void sample(const RandomRecipe& recipe, RandomKey key, std::uint64_t first_elem, std::span<float> out);

}  // namespace lading::device
