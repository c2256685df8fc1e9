#include "device/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "device/random_test_support.h"
#include "device/random_word.h"

namespace lading::device {
namespace {

constexpr RandomRecipe kUnit = {Distribution::kUniform, 0, 1, 0, 1};
constexpr RandomRecipe kNormal = {Distribution::kNormal, 0, 1, 0, 0};
constexpr RandomRecipe kTruncated = {Distribution::kTruncatedNormal, 0, 1, -2, 2};
constexpr RandomRecipe kLopsided = {Distribution::kTruncatedNormal, 0.25, 0.02, 0.24, 0.5};

std::vector<float> values(const RandomRecipe& recipe, RandomKey key, std::uint64_t first, std::size_t count) {
  std::vector<float> out(count);
  sample(recipe, key, first, out);
  return out;
}

std::vector<std::uint32_t> bits(const std::vector<float>& numbers) {
  std::vector<std::uint32_t> out;
  for (const float number : numbers) out.push_back(std::bit_cast<std::uint32_t>(number));
  return out;
}

std::vector<float> plain(const RandomRecipe& recipe, RandomKey key, std::uint64_t first, std::size_t count) {
  const auto parameters = prepare_sample(recipe);
  std::vector<float> out;
  for (std::uint64_t i = first; i < first + count; ++i) {
    out.push_back(value_of(*parameters, random_words(key, i / 4)[i % 4]));
  }
  return out;
}

double phi(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

using Words4 = std::array<std::uint32_t, 4>;

// The known answers that are published with Random123.
TEST(Random, PhiloxsKnownAnswers) {
  constexpr std::uint32_t kFf = 0xffffffff;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({kFf, kFf, kFf, kFf}, {kFf, kFf}), (Words4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Frozen: the bits are part of what a version promises. A change here is a new version in kRandomDomain.
TEST(Random, R16_GoldenBits) {
  const RandomKey key = random_key(42, "model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(random_key(0, "").value, 0xaebe53f85cdc3c4cU);
  EXPECT_EQ(key.value, 0x8d0a040fd2e751f0U);
  EXPECT_EQ(random_words(key, 0), (Words4{0x275441cc, 0xaeb810b5, 0x73f4b4ca, 0xd0466b5b}));
  EXPECT_EQ(bits(values(kUnit, key, 0, 5)),
            (std::vector<std::uint32_t>{0x3e1d5104, 0x3f2eb810, 0x3ee7e968, 0x3f50466b, 0x3f01e896}));
  EXPECT_EQ(bits(values(kNormal, key, 0, 5)),
            (std::vector<std::uint32_t>{0x3f82afd3, 0xbf67e8a1, 0x3df21562, 0xbef8b360, 0xc01bcf92}));
  EXPECT_EQ(bits(values(kTruncated, key, 0, 5)),
            (std::vector<std::uint32_t>{0xbf74e27f, 0x3ee72d96, 0xbde7054c, 0x3f56d261, 0x3c92218b}));
  EXPECT_EQ(bits(values(kLopsided, key, std::uint64_t{1} << 40, 5)),
            (std::vector<std::uint32_t>{0x3e8622b1, 0x3e8791ce, 0x3e7da10a, 0x3e8c68e4, 0x3e81b390}));
  const RandomRecipe far = {Distribution::kTruncatedNormal, 0, 1, 5, std::numeric_limits<double>::infinity()};
  EXPECT_EQ(bits(values(far, key, 0, 5)),
            (std::vector<std::uint32_t>{0x40a106ab, 0x40a6f026, 0x40a3aea8, 0x40aa1165, 0x40a450a6}));
}

TEST(Random, R16_AnyPartIsTheSliceOfTheWhole) {
  const RandomKey key = random_key(1, "w");
  for (const RandomRecipe& recipe : {kUnit, kNormal, kTruncated, kLopsided}) {
    for (const std::uint64_t begin :
         {std::uint64_t{0}, (std::uint64_t{1} << 32) - 150, (std::uint64_t{1} << 34) - 151,
          (std::uint64_t{1} << 62) - 149, std::numeric_limits<std::uint64_t>::max() - 300}) {
      const auto all = bits(values(recipe, key, begin, 300));
      for (std::size_t first = 0; first < 40; ++first) {
        for (const std::size_t count : {0U, 1U, 2U, 3U, 5U, 16U, 31U, 64U, 100U, 257U}) {
          ASSERT_EQ(bits(values(recipe, key, begin + first, count)),
                    std::vector(all.begin() + static_cast<std::ptrdiff_t>(first),
                                all.begin() + static_cast<std::ptrdiff_t>(first + count)))
              << begin << " + " << first << ", " << count;
        }
      }
    }
  }
}

TEST(Random, R16_R17_GatheredFromAnyWorldItIsTheSame) {
  constexpr std::size_t kRows = 53;
  constexpr std::size_t kColumns = 91;
  const RandomKey key = random_key(2, "embed");
  const auto all = bits(values(kNormal, key, 0, kRows * kColumns));
  for (const std::size_t world : {1U, 2U, 3U, 8U}) {
    std::vector<float> by_rows(all.size());
    std::vector<float> by_columns(all.size());
    for (std::size_t rank = world; rank-- > 0;) {
      const std::size_t row = rank * kRows / world;
      const std::size_t rows = (rank + 1) * kRows / world - row;
      sample(kNormal, key, row * kColumns, std::span(by_rows).subspan(row * kColumns, rows * kColumns));
      const std::size_t column = rank * kColumns / world;
      const std::size_t columns = (rank + 1) * kColumns / world - column;
      for (std::size_t r = kRows; r-- > 0;) {
        const std::size_t at = r * kColumns + column;
        sample(kNormal, key, at, std::span(by_columns).subspan(at, columns));
      }
    }
    EXPECT_EQ(bits(by_rows), all) << world;
    EXPECT_EQ(bits(by_columns), all) << world;
  }
}

TEST(Random, R16_EveryTargetIsThePlainDefinition) {
  const RandomKey key = random_key(3, "w");
  for (const RandomRecipe& recipe : {kUnit, kNormal, kTruncated, kLopsided}) {
    constexpr std::size_t kCount = 2'600'000;
    const auto expected = bits(plain(recipe, key, 1, kCount));
    for_each_target([&](const char* target) { ASSERT_EQ(bits(values(recipe, key, 1, kCount)), expected) << target; });
  }
}

TEST(Random, R18_TheCallersFloatingPointModesNeitherCountNorChange) {
  const RandomRecipe tiny = {Distribution::kNormal, 0, 1e-39, 0, 0};
  for (const RandomRecipe& recipe : {kUnit, kNormal, kTruncated, kLopsided, tiny}) {
    const auto expected = bits(values(recipe, RandomKey{5}, 0, 1'000));
    for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
      ASSERT_EQ(std::fesetround(mode), 0);
      const auto found = bits(values(recipe, RandomKey{5}, 0, 1'000));
      EXPECT_EQ(std::fegetround(), mode);
      std::fesetround(FE_TONEAREST);
      EXPECT_EQ(found, expected) << mode;
    }
#if defined(__x86_64__)
    constexpr unsigned kFlush = 0x8040;  // subnormal results and operands to zero, as torch.set_flush_denormal does
    const unsigned before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(before | kFlush);
    const auto found = bits(values(recipe, RandomKey{5}, 0, 1'000));
    EXPECT_EQ(__builtin_ia32_stmxcsr() & kFlush, kFlush);
    __builtin_ia32_ldmxcsr(before);
    EXPECT_EQ(found, expected);
#endif
  }
}

// The largest distance between the values' distribution and `cdf`, times the root of their number (Kolmogorov,
// Smirnov).
double distance(std::vector<float> numbers, const std::function<double(double)>& cdf) {
  std::sort(numbers.begin(), numbers.end());
  const auto count = static_cast<double>(numbers.size());
  double largest = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const double expected = cdf(static_cast<double>(numbers[i]));
    largest = std::max({largest, std::fabs(expected - static_cast<double>(i) / count),
                        std::fabs(expected - static_cast<double>(i + 1) / count)});
  }
  return largest * std::sqrt(count);
}

constexpr double kRareDistance = 1.95;  // exceeded by chance once in a thousand

TEST(Random, TheDistributionsAreWhatTheySay) {
  constexpr std::size_t kCount = 1'000'000;
  const RandomKey key = random_key(6, "statistics");
  EXPECT_LT(distance(values(kUnit, key, 0, kCount), [](double v) { return v; }), kRareDistance);
  EXPECT_LT(distance(values(kNormal, key, 0, kCount), phi), kRareDistance);
  for (const auto& [low, high] :
       {std::pair<double, double>{-2, 2}, {-1, 3}, {0.5, 1}, {-9, -3}, {5, 40}, {-0.1, 0.3}}) {
    const auto cdf = [low = low, high = high](double v) {
      return low > 0 ? (phi(-low) - phi(-v)) / (phi(-low) - phi(-high)) : (phi(v) - phi(low)) / (phi(high) - phi(low));
    };
    const RandomRecipe recipe = {Distribution::kTruncatedNormal, 0, 1, low, high};
    EXPECT_LT(distance(values(recipe, key, 0, kCount), cdf), kRareDistance) << low << " " << high;
  }
  EXPECT_GT(distance(values(kNormal, key, 0, kCount), [](double v) { return phi(v * 1.01); }), kRareDistance)
      << "it can fail";
}

TEST(Random, MomentsOfTheNormal) {
  const auto numbers = values({Distribution::kNormal, 3, 0.5, 0, 0}, random_key(7, "moments"), 0, 4'000'000);
  double sums[5] = {};
  for (const float number : numbers) {
    const double z = (static_cast<double>(number) - 3) / 0.5;
    for (int power = 1; power <= 4; ++power) sums[power] += std::pow(z, power) / static_cast<double>(numbers.size());
  }
  EXPECT_NEAR(sums[1], 0, 0.002);
  EXPECT_NEAR(sums[2], 1, 0.003);
  EXPECT_NEAR(sums[3], 0, 0.006);
  EXPECT_NEAR(sums[4], 3, 0.02);
}

TEST(Random, EveryBitOfAWordIsEven) {
  constexpr std::uint64_t kQuads = 250'000;
  std::array<std::array<int, 32>, 4> ones = {};
  for (std::uint64_t quad = 0; quad < kQuads; ++quad) {
    const Words4 words = random_words(random_key(8, "bits"), quad);
    for (std::size_t w = 0; w < 4; ++w) {
      for (std::size_t bit = 0; bit < 32; ++bit) ones[w][bit] += static_cast<int>(words[w] >> bit & 1U);
    }
  }
  double chi_square = 0;
  for (const auto& of_word : ones) {
    for (const int count : of_word) chi_square += std::pow(count - kQuads / 2.0, 2) / (kQuads / 4.0);
  }
  EXPECT_NEAR(chi_square, 128, 4 * std::sqrt(2 * 128.0));
}

TEST(Random, OtherNamesAndSeedsAreOtherStreams) {
  constexpr std::size_t kCount = 100'000;
  std::vector<RandomKey> keys;
  for (const std::uint64_t seed : {0U, 1U, 2U, 0x80000000U}) {
    for (const char* name : {"", "a", "b", "layers.0.w", "layers.1.w", "layers.0.b"})
      keys.push_back(random_key(seed, name));
  }
  std::vector<std::vector<float>> streams;
  for (const RandomKey key : keys) streams.push_back(values(kNormal, key, 0, kCount));
  for (std::size_t a = 0; a < streams.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      const double sum = std::inner_product(streams[a].begin(), streams[a].end(), streams[b].begin(), 0.0);
      EXPECT_LT(std::fabs(sum) / std::sqrt(kCount), 4.5) << a << " and " << b;
    }
    const double lagged = std::inner_product(streams[a].begin(), streams[a].end() - 1, streams[a].begin() + 1, 0.0);
    EXPECT_LT(std::fabs(lagged) / std::sqrt(kCount), 4.5) << a;
  }
  EXPECT_NE(random_key(0, std::string_view("\0", 1)).value, random_key(0, "").value);
}

}  // namespace
}  // namespace lading::device
