#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "device/cast.h"

namespace lading::device {
namespace {

TEST(BitsOf, RoundsOnceInEveryDtype) {
  EXPECT_EQ(bits_of(1, DType::kBool), 1U);
  EXPECT_EQ(bits_of(0, DType::kBool), 0U);
  EXPECT_EQ(bits_of(-1, DType::kI8), 0xFFU);
  EXPECT_EQ(bits_of(-2, DType::kI16), 0xFFFEU);
  EXPECT_EQ(bits_of(-1, DType::kI32), 0xFFFFFFFFU);
  EXPECT_EQ(bits_of(-1, DType::kI64), ~std::uint64_t{0});
  EXPECT_EQ(bits_of(255, DType::kU8), 255U);
  EXPECT_EQ(bits_of(0x1p63, DType::kU64), std::uint64_t{1} << 63);
  EXPECT_EQ(bits_of(1, DType::kBF16), 0x3F80U);
  EXPECT_EQ(bits_of(0x1.01000000001p0, DType::kBF16), 0x3F81U);  // rounded twice it would be 0x3F80
  EXPECT_EQ(bits_of(0.1, DType::kF32), 0x3DCCCCCDU);
  EXPECT_EQ(bits_of(0.1, DType::kF64), 0x3FB999999999999AU);
  EXPECT_EQ(bits_of(-0.0, DType::kF16), 0x8000U);
  EXPECT_EQ(bits_of(-1, DType::kC64), 0xBF800000U);
  EXPECT_EQ(bits_of(448, DType::kF8E4M3), 0x7EU);
  EXPECT_EQ(bits_of(-1, DType::kF8E5M2Fnuz), 0xC0U);
}

TEST(BitsOf, IntegersAndPackedDtypesDoNotHaveThemForEveryNumber) {
  EXPECT_TRUE(has_bits_for(127, DType::kI8));
  EXPECT_TRUE(has_bits_for(-128, DType::kI8));
  EXPECT_FALSE(has_bits_for(128, DType::kI8));
  EXPECT_FALSE(has_bits_for(-129, DType::kI8));
  EXPECT_TRUE(has_bits_for(255, DType::kU8));
  EXPECT_FALSE(has_bits_for(-1, DType::kU8));
  EXPECT_FALSE(has_bits_for(0x1p64, DType::kU64));
  EXPECT_FALSE(has_bits_for(std::nan(""), DType::kI32));
  EXPECT_TRUE(has_bits_for(0, DType::kF4));
  EXPECT_FALSE(has_bits_for(1, DType::kF4));
  EXPECT_TRUE(has_bits_for(1e300, DType::kF16));
}

// The codes are what torch.tensor([...]).to(torch.float8_e8m0fnu) gives in PyTorch 2.13, but for a negative number.
TEST(BitsOf, OfABareExponent) {
  EXPECT_EQ(bits_of(1, DType::kF8E8M0), 0x7FU);
  EXPECT_EQ(bits_of(1.49, DType::kF8E8M0), 0x7FU);
  EXPECT_EQ(bits_of(1.5, DType::kF8E8M0), 0x80U);
  EXPECT_EQ(bits_of(3, DType::kF8E8M0), 0x81U);
  EXPECT_EQ(bits_of(0, DType::kF8E8M0), 0x00U);
  EXPECT_EQ(bits_of(0x1p-127, DType::kF8E8M0), 0x00U);
  EXPECT_EQ(bits_of(0x1p-126, DType::kF8E8M0), 0x01U);
  EXPECT_EQ(bits_of(0x1.7p127, DType::kF8E8M0), 0xFEU);
  EXPECT_EQ(bits_of(3e38, DType::kF8E8M0), 0xFFU);
  EXPECT_EQ(bits_of(std::numeric_limits<double>::infinity(), DType::kF8E8M0), 0xFFU);
  EXPECT_EQ(bits_of(std::numeric_limits<double>::quiet_NaN(), DType::kF8E8M0), 0xFFU);
  EXPECT_EQ(bits_of(-1, DType::kF8E8M0), 0xFFU);
}

}  // namespace
}  // namespace lading::device
