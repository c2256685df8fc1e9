// What a ledger says of tensors that are dequantized (R48).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ledger/ledger_for_tests.h"

namespace lading::ledger {
namespace {

using namespace planner::world;
using mapping::Expression;
using test::all_text;
using test::ledger_of;
using test::parse;
using testing::HasSubstr;

World quantized() {
  World world{{{"p", {9, 7}, DType::kF8E4M3},
               {"q", {9, 7}, DType::kF8E5M2},
               {"s", {3, 3}, DType::kF32, 1},
               {"t", {9}, DType::kF8E8M0, 1}},
              {param("w", {9, 14}, DType::kBF16)}};
  world.build("w", Expression::concat(1, {Expression::dequantize("p", "s", Shape{4, 3}),
                                          Expression::dequantize("q", "t", Shape{1, 7}, DType::kBF16)}));
  world.mesh({{"x", 2}}).place("*", {shard(0, 0)});
  return world;
}

TEST(DequantizeLedger, RoundTrip) {
  const Ledger ledger = ledger_of(quantized());
  const std::string text = ledger_json(ledger);
  EXPECT_THAT(text, HasSubstr(R"({"dequantize": {"of": "p", "scales": "s", "block": [4, 3]}})"));
  EXPECT_THAT(text, HasSubstr(R"("product": "BF16")"));
  const auto parsed = parse(text);
  ASSERT_TRUE(parsed) << all_text(parsed.error());
  EXPECT_EQ(*parsed, ledger);
  EXPECT_EQ(ledger_json(*parsed), text);
}

TEST(DequantizeLedger, R48_PayloadsAndScalesAreSourcesAndAreRead) {
  const Ledger ledger = ledger_of(quantized());
  ASSERT_EQ(ledger.tensors.size(), 1U);
  std::string keys;
  for (const Source& source : ledger.tensors[0].sources) keys += source.key + " ";
  EXPECT_EQ(keys, "p q s t ");
  ASSERT_EQ(ledger.records.size(), 2U);
  for (const Record& record : ledger.records) {
    std::uint64_t scales = 0;
    std::uint64_t payloads = 0;
    for (const TakenBytes& taken : record.reads) {
      std::uint64_t bytes = taken.size_bytes;
      for (const auto& loop : taken.loops) bytes *= loop.count;
      (ledger.files[taken.file].name == "model-1.safetensors" ? scales : payloads) += bytes;
    }
    const bool is_first = record.rank == 0;
    EXPECT_EQ(payloads, is_first ? 70U : 56U);
    EXPECT_EQ(scales, is_first ? 24U + 5U : 24U + 4U) << "two rows of three, and one for each row";
  }
}

TEST(DequantizeLedger, WhatIsWrongInItIsSaid) {
  const std::string good = ledger_json(ledger_of(quantized()));
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t place = text.find(from);
    EXPECT_NE(place, std::string::npos) << from;
    if (place != std::string::npos) text.replace(place, from.size(), to);
    const auto parsed = parse(text);
    return parsed ? "accepted" : parsed.error().front().text();
  };
  EXPECT_THAT(refused(R"("scales": "s", )", ""), HasSubstr("$.tensors[0].expression"));
  EXPECT_THAT(refused(R"("block": [4, 3])", R"("block": [4, -3])"), HasSubstr("$.tensors[0].expression"));
  EXPECT_THAT(refused(R"("block": [4, 3])", R"("block": "4")"), HasSubstr("$.tensors[0].expression"));
  EXPECT_THAT(refused(R"("scales": "s")", R"("scales": "u")"), HasSubstr("$.tensors[0]")) << "no source of that key";
  EXPECT_THAT(refused(R"("product": "BF16")", R"("product": "F8_E4M3")"), HasSubstr("$.tensors[0].expression"));
}

// 2 x 6 I32 of eight codes each, transposed as GPTQ has them: 6 rows of 16 codes, on two ranks.
enum class Turned : std::uint8_t { kElements, kCodes };

World packed(Turned turned = Turned::kElements) {
  World world{{{"p", {2, 6}, DType::kI32},
               {"s", {2, 6}, DType::kF16, 1},
               {"t", {1}, DType::kF32, 1},
               {"z", {2, 1}, DType::kI32, 1}},
              {param("w", {6, 16}, DType::kBF16)}};
  Expression codes = Expression::dequantize("p", "s", Shape{1, 1, 8});
  codes.zeros = "z";
  codes.tensor_scale = "t";
  codes.decoding.code = CodeType::kU4;
  codes.decoding.per_element = 8;
  codes.decoding.zero = 1;
  codes.decoding.zeros_dim = 1;
  codes.decoding.tensor_scale = TensorScale::kDivisor;
  const std::vector<std::size_t> order =
      turned == Turned::kElements ? std::vector<std::size_t>{1, 0, 2} : std::vector<std::size_t>{1, 2, 0};
  world.build("w", Expression::reshape(Expression::permute(codes, order), Shape{6, 16}));
  world.mesh({{"x", 2}}).place("*", {shard(0, 0)});
  return world;
}

TEST(DequantizeLedger, PackedCodesRoundTrip) {
  const Ledger ledger = ledger_of(packed());
  const std::string text = ledger_json(ledger);
  EXPECT_THAT(text, HasSubstr(R"("code": "U4", "per_element": 8, "zero": 1, "zeros": "z", "zeros_dim": 1, )"
                              R"("tensor_scale": "t", "tensor_scale_is": "divisor")"));
  const auto parsed = parse(text);
  ASSERT_TRUE(parsed) << all_text(parsed.error());
  EXPECT_EQ(*parsed, ledger);
  EXPECT_EQ(parsed->tensors[0].expression, ledger.tensors[0].expression);
  EXPECT_EQ(ledger_json(*parsed), text);
  EXPECT_TRUE(ledger.complete);
  for (const auto& [from, to] : {std::pair(R"("code": "U4")", R"("code": "U5")"),
                                 {R"("per_element": 8, )", ""},
                                 {R"("zeros": "z")", R"("zeros": "y")"},
                                 {R"("zero": 1)", R"("zero": 65536)"}}) {
    std::string changed = text;
    changed.replace(changed.find(from), std::string_view(from).size(), to);
    const auto refused = parse(changed);
    ASSERT_FALSE(refused) << from;
    EXPECT_THAT(refused.error().front().text(), HasSubstr("$.tensors[0]"));
  }
}

void expect_bytes_once(const Ledger& ledger) {
  ASSERT_EQ(ledger.tensors.size(), 1U);
  std::string keys;
  for (const Source& source : ledger.tensors[0].sources) keys += source.key + source.shape.text() + " ";
  EXPECT_EQ(keys, "p[2, 6] s[2, 6] t[1] z[2, 1] ") << "shapes are those of the file";
  ASSERT_EQ(ledger.records.size(), 2U);
  for (const Record& record : ledger.records) {
    std::uint64_t others = 0;
    std::set<std::uint64_t> bytes;
    std::uint64_t taken_bytes = 0;
    for (const TakenBytes& taken : record.reads) {
      if (ledger.files[taken.file].name == "model-1.safetensors") {
        others += taken.size_bytes;
        continue;
      }
      std::vector<std::uint64_t> begins = {taken.begin_bytes};
      for (const TakenLoop& loop : taken.loops) {
        std::vector<std::uint64_t> more;
        for (const std::uint64_t begin : begins) {
          for (std::uint64_t i = 0; i < loop.count; ++i) more.push_back(begin + i * loop.stride_bytes);
        }
        begins = more;
      }
      for (const std::uint64_t begin : begins) {
        for (std::uint64_t i = 0; i < taken.size_bytes; ++i) bytes.insert(begin + i);
        taken_bytes += taken.size_bytes;
      }
    }
    EXPECT_EQ(bytes.size(), 24U) << "half of the payload";
    EXPECT_EQ(taken_bytes, 24U) << "each byte once";
    EXPECT_EQ(others, 24U + 8U + 4U) << "scales, zero points, and one for the whole tensor";
    EXPECT_EQ(cast_text(record, DType::kBF16), "I32 -> BF16");
  }
}

// Turned by codes, the codes of a byte go to places of their own.
TEST(DequantizeLedger, R48_BytesOfPackedCodesAreCountedOnce) {
  for (const Turned turned : {Turned::kElements, Turned::kCodes}) expect_bytes_once(ledger_of(packed(turned)));
}

}  // namespace
}  // namespace lading::ledger
