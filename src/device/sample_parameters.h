// SampleParameters: a recipe for initial values in F32, as host and GPU read it. Plain numbers, no state.
#pragma once

#include <array>
#include <cstdint>

namespace lading::device {

struct RandomKey {
  std::uint64_t value = 0;
};

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

}  // namespace lading::device
