#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "policy/policy.h"

namespace lading::policy {
namespace {

// torch.promote_types of torch 2.13, all ordered pairs, run there; ERR where it raises.
constexpr std::string_view kTorch = R"(
         bool     u8       i8       i16      i32      i64      u16      u32      u64      f16      bf16     f32      f64      c64      e4m3fn   e5m2     e4m3fnuz e5m2fnuz e8m0fnu
bool     bool     u8       i8       i16      i32      i64      ERR      ERR      ERR      f16      bf16     f32      f64      c64      ERR      ERR      ERR      ERR      ERR
u8       u8       u8       i16      i16      i32      i64      ERR      ERR      ERR      f16      bf16     f32      f64      c64      ERR      ERR      ERR      ERR      ERR
i8       i8       i16      i8       i16      i32      i64      ERR      ERR      ERR      f16      bf16     f32      f64      c64      ERR      ERR      ERR      ERR      ERR
i16      i16      i16      i16      i16      i32      i64      ERR      ERR      ERR      f16      bf16     f32      f64      c64      ERR      ERR      ERR      ERR      ERR
i32      i32      i32      i32      i32      i32      i64      ERR      ERR      ERR      f16      bf16     f32      f64      c64      ERR      ERR      ERR      ERR      ERR
i64      i64      i64      i64      i64      i64      i64      ERR      ERR      ERR      f16      bf16     f32      f64      c64      ERR      ERR      ERR      ERR      ERR
u16      ERR      ERR      ERR      ERR      ERR      ERR      u16      ERR      ERR      f16      bf16     f32      f64      ERR      ERR      ERR      ERR      ERR      ERR
u32      ERR      ERR      ERR      ERR      ERR      ERR      ERR      u32      ERR      f16      bf16     f32      f64      ERR      ERR      ERR      ERR      ERR      ERR
u64      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      u64      f16      bf16     f32      f64      ERR      ERR      ERR      ERR      ERR      ERR
f16      f16      f16      f16      f16      f16      f16      f16      f16      f16      f16      f32      f32      f64      c64      ERR      ERR      ERR      ERR      ERR
bf16     bf16     bf16     bf16     bf16     bf16     bf16     bf16     bf16     bf16     f32      bf16     f32      f64      c64      ERR      ERR      ERR      ERR      ERR
f32      f32      f32      f32      f32      f32      f32      f32      f32      f32      f32      f32      f32      f64      c64      ERR      ERR      ERR      ERR      ERR
f64      f64      f64      f64      f64      f64      f64      f64      f64      f64      f64      f64      f64      f64      complex128 ERR      ERR      ERR      ERR      ERR
c64      c64      c64      c64      c64      c64      c64      ERR      ERR      ERR      c64      c64      c64      complex128 c64      ERR      ERR      ERR      ERR      ERR
e4m3fn   ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      e4m3fn   ERR      ERR      ERR      ERR
e5m2     ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      e5m2     ERR      ERR      ERR
e4m3fnuz ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      e4m3fnuz ERR      ERR
e5m2fnuz ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      e5m2fnuz ERR
e8m0fnu  ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      ERR      e8m0fnu)";

// Names as in the table. Complex128 is no dtype of a file.
const std::map<std::string, DType>& torch_names() {
  static const std::map<std::string, DType> names = {
      {"bool", DType::kBool},
      {"u8", DType::kU8},
      {"i8", DType::kI8},
      {"i16", DType::kI16},
      {"i32", DType::kI32},
      {"i64", DType::kI64},
      {"u16", DType::kU16},
      {"u32", DType::kU32},
      {"u64", DType::kU64},
      {"f16", DType::kF16},
      {"bf16", DType::kBF16},
      {"f32", DType::kF32},
      {"f64", DType::kF64},
      {"c64", DType::kC64},
      {"e4m3fn", DType::kF8E4M3},
      {"e5m2", DType::kF8E5M2},
      {"e4m3fnuz", DType::kF8E4M3Fnuz},
      {"e5m2fnuz", DType::kF8E5M2Fnuz},
      {"e8m0fnu", DType::kF8E8M0},
  };
  return names;
}

std::vector<std::string> words(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> found;
  for (std::string word; stream >> word;) found.push_back(word);
  return found;
}

TEST(PromoteTypes, R23_AsTorchForEveryPair) {
  std::istringstream lines{std::string(kTorch)};
  std::string line;
  std::getline(lines, line);  // the empty one
  std::getline(lines, line);
  const auto columns = words(line);
  ASSERT_EQ(columns.size(), torch_names().size());
  std::size_t pairs = 0;
  while (std::getline(lines, line)) {
    const auto cells = words(line);
    ASSERT_EQ(cells.size(), columns.size() + 1) << line;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const auto result = promote_types(torch_names().at(cells[0]), torch_names().at(columns[i]));
      const std::string& torch = cells[i + 1];
      const std::string pair = cells[0] + " with " + columns[i];
      if (torch == "ERR" || torch == "complex128") {
        ASSERT_FALSE(result) << pair;
        EXPECT_EQ(result.error().code, Code::kDType) << pair;
        EXPECT_EQ(result.error().rule, "R23") << pair;
      } else {
        ASSERT_TRUE(result) << pair;
        EXPECT_EQ(*result, torch_names().at(torch)) << pair;
      }
      ++pairs;
    }
  }
  EXPECT_EQ(pairs, 361U);
}

TEST(PromoteTypes, R23_TheContractsOwnTable) {
  EXPECT_EQ(*promote_types(DType::kBF16, DType::kBF16), DType::kBF16);
  EXPECT_EQ(*promote_types(DType::kF16, DType::kF16), DType::kF16);
  EXPECT_EQ(*promote_types(DType::kBF16, DType::kF16), DType::kF32);
  EXPECT_EQ(*promote_types(DType::kBF16, DType::kF32), DType::kF32);
  EXPECT_EQ(*promote_types(DType::kF64, DType::kF16), DType::kF64);
  EXPECT_FALSE(promote_types(DType::kF8E4M3, DType::kBF16));
  EXPECT_FALSE(promote_types(DType::kF8E4M3, DType::kF8E5M2));
  EXPECT_EQ(*promote_types(DType::kF8E4M3, DType::kF8E4M3), DType::kF8E4M3);
}

TEST(PromoteTypes, R48_PackedOnlyWithItself) {
  for (const DType packed : {DType::kF4, DType::kF6E2M3, DType::kF6E3M2}) {
    for (const DType other : all_dtypes()) {
      EXPECT_EQ(promote_types(packed, other).has_value(), packed == other) << name(packed) << name(other);
      EXPECT_EQ(promote_types(other, packed).has_value(), packed == other) << name(packed) << name(other);
    }
  }
}

TEST(CastIsPossible, R24_FloatsBecomeFloats) {
  for (const DType from : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kF8E4M3, DType::kF8E5M2}) {
    for (const DType to : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kF8E4M3, DType::kF8E5M2}) {
      EXPECT_TRUE(cast_is_possible(from, to)) << name(from) << name(to);
    }
    for (const DType other : {DType::kI64, DType::kU8, DType::kBool, DType::kC64, DType::kF4, DType::kF8E8M0}) {
      EXPECT_FALSE(cast_is_possible(from, other)) << name(from) << name(other);
      EXPECT_FALSE(cast_is_possible(other, from)) << name(from) << name(other);
    }
  }
  for (const DType dtype : all_dtypes()) EXPECT_TRUE(cast_is_possible(dtype, dtype)) << name(dtype);
}

TEST(CastIsPossible, IntegersOnlyWiden) {
  EXPECT_TRUE(cast_is_possible(DType::kI32, DType::kI64));
  EXPECT_TRUE(cast_is_possible(DType::kU8, DType::kI16));
  EXPECT_TRUE(cast_is_possible(DType::kU8, DType::kU64));
  EXPECT_FALSE(cast_is_possible(DType::kI64, DType::kI32));
  EXPECT_FALSE(cast_is_possible(DType::kI8, DType::kU16)) << "a sign would be lost";
  EXPECT_FALSE(cast_is_possible(DType::kU8, DType::kI8));
  EXPECT_FALSE(cast_is_possible(DType::kBool, DType::kU8));
}

TEST(IsWideEnough, HoldsEveryValue) {
  EXPECT_TRUE(is_wide_enough(DType::kBF16, DType::kF32));
  EXPECT_TRUE(is_wide_enough(DType::kF16, DType::kF32));
  EXPECT_TRUE(is_wide_enough(DType::kF32, DType::kF64));
  EXPECT_FALSE(is_wide_enough(DType::kF32, DType::kBF16));
  EXPECT_FALSE(is_wide_enough(DType::kF16, DType::kBF16));
  EXPECT_FALSE(is_wide_enough(DType::kBF16, DType::kF16));
  EXPECT_TRUE(is_wide_enough(DType::kI32, DType::kI64));
  EXPECT_FALSE(is_wide_enough(DType::kI64, DType::kF64)) << "2^53 + 1";
  EXPECT_FALSE(is_wide_enough(DType::kF8E4M3, DType::kBF16)) << "a payload without its scale";
}

}  // namespace
}  // namespace lading::policy
