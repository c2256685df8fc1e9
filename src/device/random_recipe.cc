// From a recipe in F64 to the parameters in F32 that every element uses. Once per tensor, on the host, and the same
// bits on every machine: so no libm, whose exp and erfc differ between versions.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include "device/random.h"
#include "device/random_tail.h"

namespace lading::device {

namespace {

constexpr double kLargest = std::numeric_limits<float>::max();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// An interval that begins farther out than this many deviations is its bound nearest to the mean: there probabilities
// would leave F32's normal numbers, which some processes flush to zero.
constexpr double kFarthest = 10;

float nearest(double number) { return static_cast<float>(number); }

// The smallest F32 that is not below the number.
float round_up(double number) {
  const float rounded = nearest(number);
  return static_cast<double>(rounded) < number ? std::nextafter(rounded, kInfinity) : rounded;
}

// The largest F32 that is not above it.
float round_down(double number) {
  const float rounded = nearest(number);
  return static_cast<double>(rounded) > number ? std::nextafter(rounded, -kInfinity) : rounded;
}

// The largest F32 below it.
float below(double number) {
  const float rounded = nearest(number);
  return static_cast<double>(rounded) < number ? rounded : std::nextafter(rounded, -kInfinity);
}

bool fits(double number) { return std::fabs(number) <= kLargest; }

// The first field that has no meaning, and what it should be.
struct Fault {
  std::string_view field;
  std::string_view wanted;
  double found;
};

Fault fault_of(const RandomRecipe& recipe) {
  constexpr std::string_view kFinite = "a finite number in F32's range";
  const bool is_uniform = recipe.distribution == Distribution::kUniform;
  if (!is_uniform) {
    if (!fits(recipe.mean)) return {"mean", kFinite, recipe.mean};
    if (!fits(recipe.std) || recipe.std < 0) return {"std", "0 or more, in F32's range", recipe.std};
  }
  if (recipe.distribution == Distribution::kNormal) return {};
  for (const auto& [field, bound] : {std::pair<std::string_view, double>{"low", recipe.low}, {"high", recipe.high}}) {
    if (is_uniform ? !fits(bound) : !fits(bound) && !std::isinf(bound)) return {field, kFinite, bound};
  }
  if (recipe.low > recipe.high) return {"high", "not below low", recipe.high};
  if (is_uniform && !fits(recipe.high - recipe.low)) {
    return {"high", "a distance from low within F32's range", recipe.high};
  }
  if (recipe.low == recipe.high && std::isinf(recipe.low)) return {"low", kFinite, recipe.low};
  return {};
}

SampleParameters constant(float value) { return {SampleKind::kConstant, 0, value, value, value, {}}; }

SampleParameters uniform(const RandomRecipe& recipe) {
  const float least = round_up(recipe.low);
  const float most = below(recipe.high);
  if (least > most) return constant(nearest(recipe.low));  // no F32 lies in the interval
  return {SampleKind::kUniform, nearest(recipe.high - recipe.low), nearest(recipe.low), least, most, {}};
}

// Tails that F32 could only hold as subnormal numbers count as nothing.
float tail_in_f32(double probability) {
  const double twice = 2 * probability;
  return twice < static_cast<double>(std::numeric_limits<float>::min()) ? 0.0F : nearest(twice);
}

// Words from 0 up start at `low`, words from the top down start at `high`; where both bounds are on one side of the
// mean, the tail on that side is counted for both, because there it is the small number.
std::array<TruncatedHalf, 2> halves(double low, double high) {
  if (low >= 0) {
    const double at_low = normal_tail(low);
    const double at_high = normal_tail(high);
    const double mass = at_low - at_high;
    const float x_base = nearest(1 - at_low - at_high);
    return {
        {{tail_in_f32(at_low), x_base, nearest(-2 * mass), 1}, {tail_in_f32(at_high), x_base, nearest(2 * mass), 1}}};
  }
  if (high <= 0) {
    std::array<TruncatedHalf, 2> mirrored = halves(-high, -low);
    std::swap(mirrored[0], mirrored[1]);
    for (TruncatedHalf& half : mirrored) half.sign = -1;
    return mirrored;
  }
  const double at_low = normal_tail(-low);
  const double at_high = normal_tail(high);
  const float slope = nearest(2 * (1 - at_low - at_high));
  return {{{tail_in_f32(at_low), nearest(at_high - at_low), slope, -1},
           {tail_in_f32(at_high), nearest(at_low - at_high), slope, 1}}};
}

SampleParameters truncated_normal(const RandomRecipe& recipe) {
  const float least = round_up(recipe.low);
  const float most = round_down(recipe.high);
  if (least > most) return constant(nearest(recipe.low));
  if (recipe.std == 0) return constant(std::clamp(nearest(recipe.mean), least, most));
  const double low = (recipe.low - recipe.mean) / recipe.std;
  const double high = (recipe.high - recipe.mean) / recipe.std;
  if (low > kFarthest) return constant(least);
  if (high < -kFarthest) return constant(most);
  return {SampleKind::kTruncatedNormal, nearest(recipe.std), nearest(recipe.mean), least, most, halves(low, high)};
}

}  // namespace

Result<SampleParameters> prepare_sample(const RandomRecipe& recipe) {
  if (const Fault fault = fault_of(recipe); !fault.field.empty()) {
    return fail(Error(Code::kSkeleton, fmt::format("the {} of the random recipe is not valid", fault.field))
                    .wanted(std::string(fault.wanted))
                    .got(fmt::format("{}", fault.found)));
  }
  const DefaultFloatingPoint modes;
  switch (recipe.distribution) {
    case Distribution::kUniform: return uniform(recipe);
    case Distribution::kTruncatedNormal: return truncated_normal(recipe);
    case Distribution::kNormal: break;
  }
  return SampleParameters{SampleKind::kNormal, nearest(recipe.std), nearest(recipe.mean), -kInfinity, kInfinity, {}};
}

}  // namespace lading::device
