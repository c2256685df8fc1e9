#include "lading/decoding.h"

#include <gtest/gtest.h>

namespace lading {
namespace {

TEST(Decoding, CodesHaveNamesAndBits) {
  struct Row {
    CodeType code;
    std::string_view name;
    unsigned bits;
  };
  for (const Row& row : {Row{CodeType::kF4, "F4", 4}, Row{CodeType::kU2, "U2", 2}, Row{CodeType::kU4, "U4", 4},
                         Row{CodeType::kU8, "U8", 8}, Row{CodeType::kI8, "I8", 8}}) {
    EXPECT_EQ(name(row.code), row.name);
    EXPECT_EQ(bits(row.code), row.bits);
    EXPECT_EQ(code_from_name(row.name), row.code);
  }
  for (const std::string_view other : {"", "f4", "U3", "I4", "F8_E4M3", "F44", "U"}) {
    EXPECT_EQ(code_from_name(other), std::nullopt) << other;
  }
}

TEST(Decoding, EqualOnlyIfEveryMemberIs) {
  const Decoding plain;
  EXPECT_EQ(plain.per_element, 1U);
  EXPECT_EQ(plain, Decoding());
  const auto changed = [&](const auto& change) {
    Decoding other;
    change(other);
    return other == plain;
  };
  EXPECT_FALSE(changed([](Decoding& d) { d.code = CodeType::kF4; }));
  EXPECT_FALSE(changed([](Decoding& d) { d.per_element = 2; }));
  EXPECT_FALSE(changed([](Decoding& d) { d.scale_dtype = DType::kF8E8M0; }));
  EXPECT_FALSE(changed([](Decoding& d) { d.zero = 8; }));
  EXPECT_FALSE(changed([](Decoding& d) { d.zeros_dim = 1; }));
  EXPECT_FALSE(changed([](Decoding& d) { d.tensor_scale = TensorScale::kDivisor; }));
  EXPECT_FALSE(changed([](Decoding& d) { d.scale_order = {0}; }));
  EXPECT_FALSE(changed([](Decoding& d) { d.groups_dim = 1; }));
}

}  // namespace
}  // namespace lading
