#include "base/checked.h"

#include <gtest/gtest.h>

#include <random>

namespace lading {
namespace {

constexpr std::uint64_t kMax63 = 0x7FFF'FFFF'FFFF'FFFF;
constexpr std::uint64_t kTwo63 = 0x8000'0000'0000'0000;
constexpr std::uint64_t kMax64 = 0xFFFF'FFFF'FFFF'FFFF;

// GCC and Clang both have it; wide enough that the true result is always known.
__extension__ using Wide = unsigned __int128;

std::optional<std::uint64_t> below_two63(Wide value) {
  if (value >= kTwo63) return std::nullopt;
  return static_cast<std::uint64_t>(value);
}

TEST(Checked, LargestSizeIsALegalFileOffset) { EXPECT_EQ(kMaxSize, kMax63); }

TEST(Checked, AddAtTheEdges) {
  EXPECT_EQ(checked_add(0, 0), 0U);
  EXPECT_EQ(checked_add(kMax63, 0), kMax63);
  EXPECT_EQ(checked_add(0, kMax63), kMax63);
  EXPECT_EQ(checked_add(kMax63 - 1, 1), kMax63);
  EXPECT_EQ(checked_add(kMax63, 1), std::nullopt);
  EXPECT_EQ(checked_add(kTwo63, 0), std::nullopt);
  EXPECT_EQ(checked_add(kTwo63, kTwo63), std::nullopt);  // 2^64 wraps to 0
  EXPECT_EQ(checked_add(kMax64, 1), std::nullopt);
  EXPECT_EQ(checked_add(kMax64, kMax64), std::nullopt);
}

TEST(Checked, SubAtTheEdges) {
  EXPECT_EQ(checked_sub(0, 0), 0U);
  EXPECT_EQ(checked_sub(0, 1), std::nullopt);
  EXPECT_EQ(checked_sub(kMax63, kMax63), 0U);
  EXPECT_EQ(checked_sub(kMax63, kTwo63), std::nullopt);
  EXPECT_EQ(checked_sub(kTwo63, 1), kMax63);
  EXPECT_EQ(checked_sub(0, kMax64), std::nullopt);
}

TEST(Checked, MulAtTheEdges) {
  EXPECT_EQ(checked_mul(0, kMax64), 0U);
  EXPECT_EQ(checked_mul(kMax64, 0), 0U);
  EXPECT_EQ(checked_mul(1, kMax63), kMax63);
  EXPECT_EQ(checked_mul(1, kTwo63), std::nullopt);
  EXPECT_EQ(checked_mul(2, std::uint64_t{1} << 62), std::nullopt);
  EXPECT_EQ(checked_mul(2, (std::uint64_t{1} << 62) - 1), kMax63 - 1);
  EXPECT_EQ(checked_mul(std::uint64_t{1} << 32, std::uint64_t{1} << 32), std::nullopt);  // 2^64 wraps to 0
  EXPECT_EQ(checked_mul(kMax64, kMax64), std::nullopt);                                  // wraps to 1
}

TEST(Checked, AgreesWithWiderArithmetic) {
  std::mt19937_64 random(1);
  std::uint64_t fitted = 0;
  for (int i = 0; i < 200'000; ++i) {
    // Every size of number, so that the results fall on both sides of 2^63.
    const std::uint64_t a = random() >> (random() % 64);
    const std::uint64_t b = random() >> (random() % 64);
    ASSERT_EQ(checked_add(a, b), below_two63(Wide{a} + b)) << a << " + " << b;
    ASSERT_EQ(checked_mul(a, b), below_two63(Wide{a} * b)) << a << " * " << b;
    fitted += checked_mul(a, b).has_value() ? 1U : 0U;
  }
  EXPECT_GT(fitted, 20'000U);
  EXPECT_LT(fitted, 180'000U);
}

TEST(Checked, CastKeepsTheNumberOrRefuses) {
  EXPECT_EQ(checked_cast<std::uint8_t>(255), std::uint8_t{255});
  EXPECT_EQ(checked_cast<std::uint8_t>(256), std::nullopt);
  EXPECT_EQ(checked_cast<std::uint32_t>(-1), std::nullopt);
  EXPECT_EQ(checked_cast<std::int64_t>(kMax63), std::int64_t{0x7FFF'FFFF'FFFF'FFFF});
  EXPECT_EQ(checked_cast<std::int64_t>(kTwo63), std::nullopt);
  EXPECT_EQ(checked_cast<std::uint64_t>(std::int64_t{-1}), std::nullopt);
  EXPECT_EQ(checked_cast<std::int8_t>(std::int64_t{-128}), std::int8_t{-128});
  EXPECT_EQ(checked_cast<std::int8_t>(std::int64_t{-129}), std::nullopt);
}

}  // namespace
}  // namespace lading
