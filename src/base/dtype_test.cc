#include "lading/dtype.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace lading {
namespace {

// From the safetensors format: its names, and what their digits say about the width.
const std::map<std::string, unsigned> kBitsByName = {
    {"BOOL", 8},        {"F4", 4},          {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},   {"I8", 8},
    {"F8_E5M2", 8},     {"F8_E4M3", 8},     {"F8_E8M0", 8}, {"F16", 16},    {"I16", 16}, {"U16", 16},
    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"BF16", 16},   {"I32", 32},    {"U32", 32}, {"F32", 32},
    {"C64", 64},        {"F64", 64},        {"I64", 64},    {"U64", 64},
};

TEST(DType, RowsStandInTheOrderOfTheEnum) {
  std::size_t index = 0;
  for (const DType dtype : all_dtypes()) EXPECT_EQ(static_cast<std::size_t>(dtype), index++) << name(dtype);
  EXPECT_EQ(index, static_cast<std::size_t>(DType::kU64) + 1) << "kU64 is the last enumerator";
}

TEST(DType, EveryTypeOfTheFormatIsThereWithItsWidth) {
  std::map<std::string, unsigned> found;
  for (const DType dtype : all_dtypes()) found[std::string(name(dtype))] = bits(dtype);
  EXPECT_EQ(found, kBitsByName);
}

TEST(DType, NamesRoundTrip) {
  for (const DType dtype : all_dtypes()) EXPECT_EQ(dtype_from_name(name(dtype)), dtype);
}

TEST(DType, EnumeratorsMeanTheirNames) {
  EXPECT_EQ(name(DType::kBool), "BOOL");
  EXPECT_EQ(name(DType::kF4), "F4");
  EXPECT_EQ(name(DType::kF6E2M3), "F6_E2M3");
  EXPECT_EQ(name(DType::kF6E3M2), "F6_E3M2");
  EXPECT_EQ(name(DType::kF8E5M2), "F8_E5M2");
  EXPECT_EQ(name(DType::kF8E4M3), "F8_E4M3");
  EXPECT_EQ(name(DType::kF8E8M0), "F8_E8M0");
  EXPECT_EQ(name(DType::kF8E4M3Fnuz), "F8_E4M3FNUZ");
  EXPECT_EQ(name(DType::kF8E5M2Fnuz), "F8_E5M2FNUZ");
  EXPECT_EQ(name(DType::kF16), "F16");
  EXPECT_EQ(name(DType::kBF16), "BF16");
  EXPECT_EQ(name(DType::kU16), "U16");
  EXPECT_EQ(name(DType::kI16), "I16");
  EXPECT_EQ(name(DType::kC64), "C64");
  EXPECT_EQ(name(DType::kI64), "I64");
  EXPECT_EQ(name(DType::kU64), "U64");
}

TEST(DType, NothingElseIsAName) {
  for (const char* wrong : {"", "f32", "F32 ", " F32", "F3", "F320", "bf16", "F8_E4M3FN", "INT8", "F128"}) {
    EXPECT_EQ(dtype_from_name(wrong), std::nullopt) << wrong;
  }
  EXPECT_EQ(dtype_from_name(std::string_view("F32\0", 4)), std::nullopt);
}

// R23 promotes floating types and leaves the others: the class must be the one that the name says.
TEST(DType, R23_ClassFollowsFromTheName) {
  for (const DType dtype : all_dtypes()) {
    const std::string text(name(dtype));
    DTypeClass expected = DTypeClass::kFloat;
    if (text == "BOOL") expected = DTypeClass::kBool;
    if (text.front() == 'U') expected = DTypeClass::kUnsigned;
    if (text.front() == 'I') expected = DTypeClass::kSigned;
    if (text.front() == 'C') expected = DTypeClass::kComplex;
    EXPECT_EQ(class_of(dtype), expected) << text;
  }
}

}  // namespace
}  // namespace lading
