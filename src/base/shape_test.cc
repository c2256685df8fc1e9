#include "lading/shape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <random>
#include <set>

namespace lading {
namespace {

constexpr std::uint64_t kTwo31 = std::uint64_t{1} << 31;
constexpr std::uint64_t kTwo32 = std::uint64_t{1} << 32;
constexpr std::uint64_t kTwo62 = std::uint64_t{1} << 62;
constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

TEST(Shape, NumElems) {
  EXPECT_EQ(Shape{}.num_elems(), 1U);
  EXPECT_EQ(Shape{0}.num_elems(), 0U);
  EXPECT_EQ((Shape{2, 3, 4}).num_elems(), 24U);
  EXPECT_EQ((Shape{5, 0, 7}).num_elems(), 0U);
  EXPECT_EQ((Shape{1, 1, 1}).num_elems(), 1U);
}

TEST(Shape, S3_NumElemsStaysBelowTwo63) {
  EXPECT_EQ((Shape{2 * kTwo62 - 1}).num_elems(), 2 * kTwo62 - 1);
  EXPECT_EQ((Shape{2 * kTwo62}).num_elems(), std::nullopt);
  EXPECT_EQ((Shape{kMax}).num_elems(), std::nullopt);
  EXPECT_EQ((Shape{kTwo31, kTwo31}).num_elems(), kTwo62);
  EXPECT_EQ((Shape{kTwo31, kTwo32}).num_elems(), std::nullopt);
  EXPECT_EQ((Shape{kTwo32, kTwo32}).num_elems(), std::nullopt) << "2^64 wraps to 0";
  EXPECT_EQ((Shape{kTwo32, kTwo32, 1}).num_elems(), std::nullopt);
}

TEST(Shape, S3_OverflowIsRefusedEvenWhereADimIsZero) {
  EXPECT_EQ((Shape{0, 2 * kTwo62}).num_elems(), std::nullopt);
  EXPECT_EQ((Shape{kTwo32, 0, kTwo32}).num_elems(), std::nullopt);
  EXPECT_EQ((Shape{kTwo32, kTwo32, 0}).num_elems(), std::nullopt);
  EXPECT_EQ((Shape{0, 2 * kTwo62}).size_bytes(DType::kU8), std::nullopt);
  EXPECT_EQ((Shape{0, 2 * kTwo62 - 1}).num_elems(), 0U);
}

TEST(Shape, SizeBytesOfWholeTypes) {
  EXPECT_EQ(Shape{}.size_bytes(DType::kF32), 4U);
  EXPECT_EQ((Shape{3, 5}).size_bytes(DType::kBF16), 30U);
  EXPECT_EQ((Shape{3, 5}).size_bytes(DType::kC64), 120U);
  EXPECT_EQ((Shape{3, 0}).size_bytes(DType::kF64), 0U);
  EXPECT_EQ((Shape{7}).size_bytes(DType::kBool), 7U);
}

TEST(Shape, Fault11_PackedTypesMustEndAtAByte) {
  EXPECT_EQ(Shape{}.size_bytes(DType::kF4), std::nullopt);
  EXPECT_EQ((Shape{2}).size_bytes(DType::kF4), 1U);
  EXPECT_EQ((Shape{3}).size_bytes(DType::kF4), std::nullopt);
  EXPECT_EQ((Shape{3, 2}).size_bytes(DType::kF4), 3U);
  EXPECT_EQ((Shape{0}).size_bytes(DType::kF4), 0U);
  EXPECT_EQ((Shape{2}).size_bytes(DType::kF6E2M3), std::nullopt);
  EXPECT_EQ((Shape{4}).size_bytes(DType::kF6E2M3), 3U);
  EXPECT_EQ((Shape{6}).size_bytes(DType::kF6E3M2), std::nullopt);
  EXPECT_EQ((Shape{8, 3}).size_bytes(DType::kF6E3M2), 18U);
}

TEST(Shape, Fault9_SizeBytesOverflow) {
  EXPECT_EQ((Shape{2 * kTwo62 - 1}).size_bytes(DType::kU8), 2 * kTwo62 - 1);
  EXPECT_EQ((Shape{kTwo62}).size_bytes(DType::kF16), std::nullopt);
  EXPECT_EQ((Shape{kTwo62 - 1}).size_bytes(DType::kF16), 2 * kTwo62 - 2);
  // The bits overflow 64, the bytes do not.
  EXPECT_EQ((Shape{kTwo62}).size_bytes(DType::kF4), kTwo62 / 2);
  EXPECT_EQ((Shape{2 * kTwo62 - 2}).size_bytes(DType::kF4), kTwo62 - 1);
}

TEST(Shape, SizeBytesAgreesWithCountingBits) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t a = random() % 40;
    const std::uint64_t b = random() % 40;
    const DType dtype = all_dtypes()[random() % all_dtypes().size()];
    const std::uint64_t all_bits = a * b * bits(dtype);
    const auto expected = all_bits % 8 == 0 ? std::optional(all_bits / 8) : std::nullopt;
    ASSERT_EQ((Shape{a, b}).size_bytes(dtype), expected) << name(dtype) << " " << a << " " << b;
  }
}

TEST(Shape, Text) {
  EXPECT_EQ(Shape{}.text(), "[]");
  EXPECT_EQ(Shape{7}.text(), "[7]");
  EXPECT_EQ((Shape{2, 3}).text(), "[2, 3]");
}

}  // namespace
}  // namespace lading
