// What recipes mean at their edges, and how exact the quantiles are.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "device/random.h"
#include "device/random_tail.h"
#include "device/random_test_support.h"
#include "device/random_word.h"

namespace lading::device {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

RandomRecipe uniform(double low, double high) { return {Distribution::kUniform, 0, 1, low, high}; }
RandomRecipe normal(double mean, double std) { return {Distribution::kNormal, mean, std, 0, 0}; }
RandomRecipe truncated(double mean, double std, double low, double high) {
  return {Distribution::kTruncatedNormal, mean, std, low, high};
}

struct Extremes {
  float least;
  float most;
};

// Over the words at both ends and in the middle, and many others.
Extremes extremes(const RandomRecipe& recipe) {
  std::vector<std::uint32_t> words = {0, 1, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
  for (std::uint32_t i = 0; i < 100'000; ++i) words.push_back(i * 2'654'435'769U);
  std::vector<float> out(words.size());
  values_of(*prepare_sample(recipe), words, out);
  const auto [least, most] = std::minmax_element(out.begin(), out.end());
  return {*least, *most};
}

void is_always(const RandomRecipe& recipe, float value) {
  const Extremes found = extremes(recipe);
  EXPECT_EQ(found.least, value);
  EXPECT_EQ(found.most, value);
}

TEST(RandomRecipe, WhatHasNoMeaningIsRefused) {
  for (const RandomRecipe& recipe :
       {normal(kNaN, 1), normal(0, -1), normal(0, kNaN), normal(1e39, 1), normal(0, kInfinity), uniform(1, 0),
        uniform(kNaN, 1), uniform(0, kInfinity), uniform(-3e38, 3e38), uniform(0, 1e39), truncated(0, 1, 1, 0),
        truncated(0, 1, kNaN, 1), truncated(0, 1, kInfinity, kInfinity), truncated(0, -1, 0, 1)}) {
    const auto prepared = prepare_sample(recipe);
    ASSERT_FALSE(prepared) << recipe.mean << " " << recipe.std << " " << recipe.low << " " << recipe.high;
    EXPECT_NE(prepared.error().text().find("recipe"), std::string::npos);
  }
}

TEST(RandomRecipe, AUniformNumberNeverReachesHigh) {
  for (const auto& [low, high] : {std::pair<double, double>{0, 1},
                                  {-1, 1},
                                  {0.1, 0.3},
                                  {-0.1, 0.1},
                                  {1e6, 1e6 + 1},
                                  {16777215, 16777217},
                                  {-1, 0},
                                  {-1e-40, 1e-40},
                                  {0, 3e38},
                                  {1, 1 + 1e-7}}) {
    const Extremes found = extremes(uniform(low, high));
    EXPECT_GE(static_cast<double>(found.least), low) << low << " " << high;
    EXPECT_LT(static_cast<double>(found.most), high) << low << " " << high;
  }
  EXPECT_EQ(extremes(uniform(0, 1)).least, 0.0F);
  EXPECT_EQ(extremes(uniform(0, 1)).most, 0x1.fffffep-1F);
}

TEST(RandomRecipe, AnEmptyIntervalIsItsLowerBound) {
  is_always(uniform(0.5, 0.5), 0.5F);
  is_always(uniform(0.1, 0.1), 0.1F);
  is_always(uniform(1 + 1e-10, 1 + 2e-10), 1.0F);
  is_always(truncated(0, 1, 0.5, 0.5), 0.5F);
  is_always(truncated(0, 1, 1 + 1e-10, 1 + 2e-10), 1.0F);
}

TEST(RandomRecipe, WithoutDeviationEveryValueIsTheMean) {
  is_always(normal(0.1, 0), 0.1F);
  is_always(truncated(0.25, 0, -1, 1), 0.25F);
  is_always(truncated(3, 0, -1, 1), 1.0F);
  is_always(truncated(-3, 0, -1, kInfinity), -1.0F);
}

TEST(RandomRecipe, TruncatedValuesStayWithinTheirBounds) {
  for (const RandomRecipe& recipe :
       {truncated(0, 1, -2, 2), truncated(0, 0.02, -0.04, 0.04), truncated(0, 0.1, 0.3, 0.9), truncated(5, 2, -1, 0.1),
        truncated(0, 1, 5, 6), truncated(0, 1, -6, -5), truncated(0, 1, 1e-9, 2e-9), truncated(100, 1, 99.99, 100.01),
        truncated(0, 1, 9.999, 10.001), truncated(0, 1e-30, -1e-30, 1), truncated(0, 1, -1e30, 1e-3)}) {
    const Extremes found = extremes(recipe);
    EXPECT_GE(static_cast<double>(found.least), recipe.low);
    EXPECT_LE(static_cast<double>(found.most), recipe.high);
    EXPECT_LT(found.least, found.most);
  }
}

TEST(RandomRecipe, BoundsInTheTailOrAtInfinity) {
  const Extremes above = extremes(truncated(0, 1, 5, kInfinity));
  EXPECT_NEAR(above.least, 5, 1e-6);
  EXPECT_GT(above.most, 8);
  EXPECT_LT(above.most, 8.5);
  const Extremes below = extremes(truncated(0, 1, -kInfinity, -5));
  EXPECT_EQ(below.least, -above.most);
  EXPECT_EQ(below.most, -above.least);
  is_always(truncated(0, 1, 10.5, kInfinity), 10.5F);
  is_always(truncated(0, 1, -30, -20), -20.0F);
  is_always(truncated(0, 1e-30, 1, 2), 1.0F);
}

TEST(RandomRecipe, WithInfiniteBoundsItIsTheNormal) {
  std::vector<std::uint32_t> words(100'000);
  std::iota(words.begin(), words.end(), 0U);
  for (auto& word : words) word *= 42'949U;
  std::vector<float> cut(words.size());
  values_of(*prepare_sample(truncated(0, 1, -kInfinity, kInfinity)), words, cut);
  for (std::size_t i = 0; i < words.size(); ++i) {
    const double p = (static_cast<double>(words[i] | 1U)) * 0x1p-32;
    const double z = cut[i];
    const double density = std::exp(-0.5 * z * z) / std::sqrt(2 * std::acos(-1.0));
    const double tail =
        z < 0 ? 0.5 * std::erfc(-z / std::sqrt(2.0)) - p : (1 - p) - 0.5 * std::erfc(z / std::sqrt(2.0));
    ASSERT_LT(std::fabs(tail / density), 4e-7 * std::max(0.5, std::fabs(z))) << words[i];
  }
}

TEST(RandomRecipe, TheTailOfTheNormal) {
  EXPECT_EQ(normal_tail(0), 0.5);
  EXPECT_EQ(normal_tail(kInfinity), 0.0);
  EXPECT_EQ(normal_tail(1e300), 0.0);
  for (double z = 0; z < 37; z += 0.0078125) {
    const double expected = 0.5 * std::erfc(z / std::sqrt(2.0));
    ASSERT_NEAR(normal_tail(z) / expected, 1, 1e-12) << z;
  }
}

// Exact quantiles of a few words, from Python: statistics.NormalDist().inv_cdf.
TEST(RandomRecipe, QuantilesOfSomeWords) {
  const std::pair<std::uint32_t, double> exact[] = {
      {0x00000000, 6.33795775455},     {0x00000001, 6.16642951782},  {0x00000064, 5.46306255439},
      {0x00012345, 4.14005493015},     {0x01000000, 2.66006745858},  {0x02000000, 2.41755901081},
      {0x10000000, 1.53412054341},     {0x20000000, 1.15034937981},  {0x3fffffff, 0.674489750562},
      {0x40000000, 0.67448974983},     {0x5a5a5a5a, 0.377391943736}, {0x7f000000, 0.00979167286952},
      {0x7fffff00, 1.49114877956e-07},
  };
  for (const auto& [word, z] : exact) {
    EXPECT_NEAR(static_cast<double>(standard_normal(word)) / z, 1, 2e-7) << word;
    EXPECT_EQ(standard_normal(word | 0x80000000U), -standard_normal(word));
  }
  EXPECT_NEAR(static_cast<double>(standard_normal(0x7fffffff)), 0x1p-33 * std::sqrt(2 * std::acos(-1.0)), 1e-16)
      << "the one nearest to 0";
}

// The distance of `z` from the quantile of probability `tail` above it, to first order.
double error_of(double z, double tail) {
  const double density = std::exp(-0.5 * z * z) * 0.3989422804014327;
  const double scaled = z * 0.7071067811865476;
  return (z < 0.5 ? (0.5 - tail) - 0.5 * std::erf(scaled) : 0.5 * std::erfc(scaled) - tail) / density;
}

// Two million words, or with LADING_RANDOM_WORDS=4294967296 all that there are: docs/how-it-works/random.md. The plain
// definition is what instruction sets without fma run, so in the long run only the others are compared with it.
TEST(RandomRecipe, R16_SweepOfTheNormalOverWords) {
  const char* asked = std::getenv("LADING_RANDOM_WORDS");
  const std::uint64_t count = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 1U << 21;
  const SampleParameters parameters = *prepare_sample(normal(0, 1));
  constexpr std::size_t kChunk = 1 << 20;
  std::vector<std::uint32_t> words(kChunk);
  std::vector<float> expected(kChunk);
  std::vector<float> found(kChunk);
  double largest_error = 0;
  std::uint32_t worst = 0;
  for (std::uint64_t first = 0; first < count; first += kChunk) {
    // An odd factor scatters the words, and takes all of them to all of them.
    for (std::size_t i = 0; i < kChunk; ++i) words[i] = static_cast<std::uint32_t>((first + i) * 0x9e3779b1U);
    for (std::size_t i = 0; i < kChunk; ++i) expected[i] = value_of(parameters, words[i]);
    for_each_target([&](const std::string& target) {
      if (asked != nullptr && target.find("AVX") == std::string::npos) return;
      values_of(parameters, words, found);
      ASSERT_EQ(std::memcmp(found.data(), expected.data(), kChunk * sizeof(float)), 0) << target << " from " << first;
    });
    for (std::size_t i = 0; i < kChunk; ++i) {
      const double z = expected[i];
      ASSERT_EQ(z < 0, words[i] >> 31 != 0);
      if (z < 0) continue;  // the other sign of a word that has its turn
      const double error = std::fabs(error_of(z, (2.0 * words[i] + 1) * 0x1p-33)) / z;
      if (error > largest_error) {
        largest_error = error;
        worst = words[i];
      }
    }
  }
  RecordProperty("words", std::to_string(count));
  std::printf("%llu words, largest relative error %.3g at word %08x\n", static_cast<unsigned long long>(count),
              largest_error, worst);
  EXPECT_LT(largest_error, 4e-7);
}

}  // namespace
}  // namespace lading::device
