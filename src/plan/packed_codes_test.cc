// What a plan says of packed codes: JSON, explanation, digest, difference, groups of ranks (R48).
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "base/json_reader.h"
#include "plan/explain.h"
#include "plan/plan_diff.h"
#include "plan/plan_for_tests.h"
#include "plan/rank_groups.h"
#include "plan/source_codes.h"

namespace lading::plan {
namespace {

using mapping::Expression;
using testing::HasSubstr;
using testing::Not;

constexpr SourceId kPacked = 0;
constexpr SourceId kZeros = 2;
constexpr SourceId kTensorScale = 3;

// 16 rows of 8 I32 with 8 codes of 4 bits each; one scale and one zero point for 4 rows and 8 codes.
Plan packed_plan(std::uint64_t ranks) {
  Plan plan;
  plan.files = {{"a.safetensors", 10'000}};
  plan.sources = {{"p", 0, {100, 612}, DType::kI32, {16, 8, 8}},
                  {"s", 0, {1000, 1064}, DType::kBF16, {4, 8}},
                  {"z", 0, {2000, 2016}, DType::kI32, {4, 1}},
                  {"t", 0, {3000, 3004}, DType::kF32, {1}}};
  Scaling scaling{1, Shape{4, 1, 8}, {}};
  scaling.decoding.code = CodeType::kU4;
  scaling.decoding.per_element = 8;
  scaling.decoding.zero = 1;
  scaling.decoding.zeros_dim = 1;
  scaling.zeros = kZeros;
  plan.sources[kPacked].scaling = scaling;
  Statement& s = add_named_statement(plan, "w", Provenance::kFile, {16, 8, 8});
  s.expression = Expression::dequantize("p", "s", scaling.block, {}, scaling.decoding);
  s.expression.zeros = "z";
  s.storage = DType::kBF16;
  plan.mesh = layout::Mesh({{"x", ranks}});
  for (std::uint64_t r = 0; r < ranks; ++r) {
    RankPlan rank;
    rank.rank = r;
    rank.regions.resize(1);
    rank.regions[0].runs = {{{r * 16 / ranks, 0, 16 / ranks}}, {{0, 0, 8}}, {{0, 0, 8}}};
    Destination d;
    d.device = "cpu";
    d.owned_elems = 1024 / ranks;
    d.transfers = {{kPacked, 100 + r * 512 / ranks, 0, 1024 / ranks, {}}};
    rank.destinations.push_back(d);
    rank.reads = {{0, 100 + r * 512 / ranks, 512 / ranks, 1, 0, {{0, 0, 0}}}};
    rank.scale_reads = {{kPacked,
                         {1000 + r * 64 / ranks, 1000 + (r + 1) * 64 / ranks},
                         {2000 + r * 16 / ranks, 2000 + (r + 1) * 16 / ranks}}};
    plan.ranks.push_back(std::move(rank));
  }
  return plan;
}

Scaling& scaling_of(Plan& plan) { return *plan.sources[kPacked].scaling; }

std::string explanation_of(const Plan& plan) {
  std::string text;
  for (const ExplainedFact& fact : explain(plan, *plan.find("w"), &plan.ranks.back()))
    text += fact.topic + ": " + fact.text + "\n";
  return text;
}

TEST(PackedCodesPlan, ExplainSaysWhoseCodesAKeyHolds) {
  Plan plan = packed_plan(1);
  Expression& made = plan.statements[0].expression;
  made = Expression::reshape(std::move(made), Shape{128, 8});
  EXPECT_THAT(explanation_of(plan), HasSubstr("the key holds the tensor's packed codes"));
  made.parts.front().key = "y.weight_packed";
  plan.statements[0].name = "x.weight";
  std::string text;
  for (const ExplainedFact& fact : explain(plan, plan.statements[0], nullptr)) text += fact.text + "\n";
  EXPECT_THAT(text, HasSubstr("the packed codes of a tensor tied to it"));
}

TEST(PackedCodesPlan, JsonSaysTheKeyAsItIsAndHowItIsDecoded) {
  Plan plan = packed_plan(2);
  std::string text = plan_json(plan);
  parsed(text);
  constexpr std::string_view kMembers = R"("code": "U4", "per_element": 8, "zero": 1, "zeros": "z", "zeros_dim": 1})";
  EXPECT_THAT(text, HasSubstr(fmt::format(R"("dtype": "I32", "shape": [16, 8], "scales": "s", "block": [4, 1, 8], {})",
                                          kMembers)));
  EXPECT_THAT(text,
              HasSubstr(fmt::format(R"("dequantize": {{"of": "p", "scales": "s", "block": [4, 1, 8], {})", kMembers)));
  EXPECT_THAT(text, HasSubstr(R"({"scales": "s", "of": "p", "begin": {"base": 1000, "steps": [32]}, "size": 32, )"
                              R"("zeros": "z", "zeros_begin": {"base": 2000, "steps": [8]}, "zeros_size": 8})"));
  EXPECT_THAT(text, Not(HasSubstr("first_code")));
  EXPECT_THAT(text, Not(HasSubstr("tensor_scale")));
  scaling_of(plan).tensor_scale = kTensorScale;
  scaling_of(plan).decoding.tensor_scale = TensorScale::kDivisor;
  scaling_of(plan).decoding.scale_order = {1, 0};
  plan.ranks[1].destinations[0].transfers[0].first_code = 1;
  text = plan_json(plan);
  parsed(text);
  EXPECT_THAT(text, HasSubstr(R"("tensor_scale": "t", "tensor_scale_is": "divisor", "scale_order": [1, 0]})"));
  EXPECT_THAT(text, HasSubstr(R"("from": 356, "first_code": 1, "to": 0)"));
  EXPECT_THAT(text, HasSubstr(R"("zeros_size": 8, "tensor_scale": "t"})"));
}

TEST(PackedCodesPlan, ExplainSaysTheSchemeInPlainWords) {
  Plan plan = packed_plan(2);
  EXPECT_THAT(explanation_of(plan),
              HasSubstr("source: \"p\" I32 [16, 8], bytes 100 to 612 of \"a.safetensors\"\n"
                        "dequantized: each element of \"p\" holds 8 codes, the first in the lowest bits; codes are "
                        "unsigned integers of 4 bits\n"
                        "dequantized: each value is (code - 1 - zero point) times the scale of its block, rounded "
                        "once to BF16 [R48]\n"
                        "dequantized: scales are in \"s\", one for each block of [4, 1, 8]\n"
                        "dequantized: zero points are in \"z\", one for each block, packed along dim 1\n"));
  EXPECT_THAT(explanation_of(plan), HasSubstr("expression: dequantize(p, s)"));
  EXPECT_THAT(explanation_of(plan), HasSubstr("mapping: no rule: the key holds the tensor's packed codes\n"));
  plan.sources[kPacked].key = plan.statements[0].expression.key = "w";
  EXPECT_THAT(explanation_of(plan), HasSubstr("mapping: no rule: the key is the tensor's own name\n"));
  plan.statements[0].expression = Expression::reshape(plan.statements[0].expression, {16, 64});
  EXPECT_THAT(explanation_of(plan), HasSubstr("mapping: no rule: the key is the tensor's own name\n"));
  plan = packed_plan(2);
  Scaling& scaling = scaling_of(plan);
  scaling.zeros = SourceId::none();
  scaling.decoding = {};
  scaling.decoding.code = CodeType::kF4;
  scaling.decoding.per_element = 1;
  scaling.decoding.scale_dtype = DType::kF8E8M0;
  scaling.decoding.scale_order = {1, 0};
  scaling.decoding.tensor_scale = TensorScale::kDivisor;
  scaling.tensor_scale = kTensorScale;
  scaling.product = DType::kF32;
  plan.ranks.back().destinations[0].transfers[0].first_code = 1;
  for (const char* part :
       {"each element of \"p\" is a code; codes are floats of 4 bits (E2M1)\n",
        "each value is the code times the scale of its block divided by the scale of the whole tensor, rounded to F32 "
        "and "
        "then to BF16 [R48]\n",
        "one for each block of [4, 1, 8], their bits read as F8_E8M0; in each run of 2 scales, that of code i is at "
        "place [1, 0][i]\n",
        "the scale of the whole tensor is in \"t\"\n", "from byte 356 (code 1 of it) of"}) {
    EXPECT_THAT(explanation_of(plan), HasSubstr(part));
  }
  EXPECT_THAT(explanation_of(plan), Not(HasSubstr("zero point")));
}

TEST(PackedCodesPlan, TheDigestCoversAllThatDecidesValues) {
  std::set<std::string> digests;
  const auto add = [&](const std::function<void(Expression&)>& change) {
    Plan plan = packed_plan(1);
    change(plan.statements[0].expression);
    return digests.insert(digest(plan)).second;
  };
  EXPECT_TRUE(add([](Expression&) {}));
  EXPECT_FALSE(add([](Expression&) {}));
  EXPECT_TRUE(add([](Expression& e) { e.zeros = "y"; }));
  EXPECT_TRUE(add([](Expression& e) { e.zeros.clear(); }));
  EXPECT_TRUE(add([](Expression& e) { e.tensor_scale = "t"; }));
  EXPECT_TRUE(add([](Expression& e) { e.decoding.code = CodeType::kF4; }));
  EXPECT_TRUE(add([](Expression& e) { e.decoding.code.reset(); }));
  EXPECT_TRUE(add([](Expression& e) { e.decoding.per_element = 4; }));
  EXPECT_TRUE(add([](Expression& e) { e.decoding.scale_dtype = DType::kF8E8M0; }));
  EXPECT_TRUE(add([](Expression& e) { e.decoding.zero = 8; }));
  EXPECT_TRUE(add([](Expression& e) { e.decoding.zeros_dim = 0; }));
  EXPECT_TRUE(add([](Expression& e) { e.decoding.tensor_scale = TensorScale::kDivisor; }));
  EXPECT_TRUE(add([](Expression& e) { e.decoding.scale_order = {0, 1}; }));
  EXPECT_TRUE(add([](Expression& e) { e.decoding.scale_order = {1, 0}; }));
  EXPECT_TRUE(add([](Expression& e) { e.decoding.groups_dim = 1; }));
  EXPECT_TRUE(add([](Expression& e) { e.groups = "g"; }));
}

TEST(PackedCodesPlan, TheDifferenceNamesSourceTensorAndDestination) {
  Plan changed = packed_plan(1);
  scaling_of(changed).decoding.zero = 8;
  changed.statements[0].expression.decoding.zero = 8;
  changed.ranks[0].destinations[0].transfers[0].first_code = 1;
  changed.ranks[0].scale_reads[0].zeros.begin += 4;
  const auto difference = diff_plans(parsed(plan_json(packed_plan(1))), parsed(plan_json(changed)));
  ASSERT_TRUE(difference);
  std::vector<std::string> told;
  for (const PlanChange& change : difference->changes) told.push_back(change.name + "." + change.field);
  EXPECT_THAT(told, testing::UnorderedElementsAre("p.zero", "w.expression", "rank 0, w.transfers", "0.scale_reads"));
}

TEST(PackedCodesPlan, GroupsOfRanksSayWhereZeroPointsBegin) {
  const Plan alike = packed_plan(4);
  const std::vector<RankGroup> one = group_ranks(alike);
  ASSERT_EQ(one.size(), 1U);
  ASSERT_EQ(one[0].offsets.size(), 5U) << "from, to, read, scales, zero points";
  EXPECT_EQ(one[0].offsets[3].base, 1000U);
  EXPECT_EQ(one[0].offsets[3].steps, std::vector<std::uint64_t>{16});
  EXPECT_EQ(one[0].offsets[4].base, 2000U);
  EXPECT_EQ(one[0].offsets[4].steps, std::vector<std::uint64_t>{4});
  const auto groups_after = [&](const std::function<void(RankPlan&)>& change) {
    Plan plan = alike;
    change(plan.ranks[2]);
    return group_ranks(plan).size();
  };
  EXPECT_EQ(groups_after([](RankPlan& r) { r.destinations[0].transfers[0].first_code = 1; }), 2U);
  EXPECT_EQ(groups_after([](RankPlan& r) { r.scale_reads[0].zeros.end += 4; }), 2U) << "another size";
  EXPECT_EQ(groups_after([](RankPlan& r) { r.scale_reads[0].zeros = {}; }), 2U);
  Plan moved = alike;
  moved.ranks[2].scale_reads[0].zeros = {2100, 2104};
  const std::vector<RankGroup> listed = group_ranks(moved);
  ASSERT_EQ(listed.size(), 1U);
  EXPECT_EQ(listed[0].offsets[4].list, (std::vector<std::uint64_t>{2000, 2004, 2100, 2012}));
}

TEST(PackedCodesPlan, ARunTakesTheBytesThatItsCodesAreIn) {
  const Plan plan = packed_plan(1);
  const auto bytes = [&](std::uint64_t elems, std::uint8_t first) {
    Transfer transfer{kPacked, 100, 0, elems, {}};
    transfer.first_code = first;
    return run_bytes(transfer, plan.sources[kPacked]);
  };
  EXPECT_EQ(bytes(1, 0), 1U);
  EXPECT_EQ(bytes(1, 1), 1U);
  EXPECT_EQ(bytes(2, 0), 1U);
  EXPECT_EQ(bytes(2, 1), 2U);
  EXPECT_EQ(bytes(7, 1), 4U);
  EXPECT_EQ(run_bytes({1, 1000, 0, 3, {}}, plan.sources[1]), 6U);
  EXPECT_EQ(key_shape(plan.sources[kPacked]), (Shape{16, 8}));
  EXPECT_EQ(key_shape(plan.sources[1]), (Shape{4, 8}));
}

}  // namespace
}  // namespace lading::plan
