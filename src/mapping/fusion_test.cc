// Build rules: experts that are stacked and fused, keys that are split (R47, R48, R59).
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mapping/pieces.h"
#include "mapping/resolve.h"
#include "mapping/resolve_for_tests.h"

namespace lading::mapping {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;

constexpr std::string_view kGateUp = R"({"concat": {"dim": 1, "parts": [
  {"stack": {"dim": 0, "over": "e", "of": "layers.{l}.experts.{e}.w1"}},
  {"stack": {"dim": 0, "over": "e", "of": "layers.{l}.experts.{e}.w3"}}]}})";

// One layer, `experts` of them, gate and up of 3 x 4 each.
World mixture(std::uint64_t experts) {
  World world;
  world.model.emplace("layers.0.experts.gate_up", Shape{experts, 6, 4});
  for (std::uint64_t e = 0; e < experts; ++e) {
    world.checkpoint.emplace(fmt::format("layers.0.experts.{}.w1", e), Shape{3, 4});
    world.checkpoint.emplace(fmt::format("layers.0.experts.{}.w3", e), Shape{3, 4});
  }
  return world;
}

Rule gate_up() { return Rule::build("moe", "layers.{l}.experts.gate_up", expression_of(kGateUp)); }

std::vector<std::string> stacked_keys(const Expression& stack) {
  std::vector<std::string> keys;
  for (const Expression& part : stack.parts) keys.push_back(part.key);
  return keys;
}

TEST(Fusion, R47_TwelveExpertsStandInNumericOrderGateBeforeUp) {
  const World world = mixture(12);
  const auto resolved = world.resolve({gate_up()});
  ASSERT_TRUE(resolved) << all_text(resolved.error());
  const Expression& fused = resolved->expressions.at("layers.0.experts.gate_up");
  ASSERT_EQ(fused.parts.size(), 2U);
  for (std::uint64_t e = 0; e < 12; ++e) {
    EXPECT_EQ(stacked_keys(fused.parts[0])[e], fmt::format("layers.0.experts.{}.w1", e));
    EXPECT_EQ(stacked_keys(fused.parts[1])[e], fmt::format("layers.0.experts.{}.w3", e));
  }
  const auto pieces = expand(fused, world.shape_of());
  ASSERT_TRUE(pieces);
  EXPECT_EQ(pieces->shape, (Shape{12, 6, 4}));
  EXPECT_THAT(resolved->unread, IsEmpty());
  EXPECT_EQ(resolved->decided_by.at("layers.0.experts.gate_up"), "moe");
}

TEST(Fusion, R47_EveryExpertThatIsMissingIsNamed) {
  World world = mixture(12);
  world.checkpoint.erase("layers.0.experts.3.w1");
  world.checkpoint.erase("layers.0.experts.7.w3");
  world.checkpoint.emplace("layers.0.experts.12.w1", Shape{3, 4});  // twelve w1 again, as in transformers' trap
  const auto resolved = world.resolve({gate_up()});
  ASSERT_FALSE(resolved);
  ASSERT_EQ(resolved.error().size(), 2U);
  EXPECT_EQ(resolved.error().front().rule, "R47");
  EXPECT_EQ(resolved.error().front().tensor, "layers.0.experts.gate_up");
  EXPECT_THAT(all_text(resolved.error()), AllOf(HasSubstr("experts.3.w1"), HasSubstr("experts.7.w3")));
}

TEST(Fusion, R47_AnExpertTooManyStaysUnread) {
  World world = mixture(4);
  world.checkpoint.emplace("layers.0.experts.4.w1", Shape{3, 4});
  const auto resolved = world.resolve({gate_up()});
  ASSERT_TRUE(resolved);
  EXPECT_THAT(resolved->unread, ElementsAre(Pair("layers.0.experts.4.w1", "")));
}

TEST(Fusion, R47_ACountMustEqualTheModels) {
  const World world = mixture(4);
  const auto rule = [](std::uint64_t count) {
    return Rule::build("moe", "layers.{l}.experts.gate_up",
                       expression_of(fmt::format(R"({{"concat": {{"dim": 1, "parts": [
      {{"stack": {{"dim": 0, "over": "e", "count": {0}, "of": "layers.{{l}}.experts.{{e}}.w1"}}}},
      {{"stack": {{"dim": 0, "over": "e", "count": {0}, "of": "layers.{{l}}.experts.{{e}}.w3"}}}}]}}}})",
                                                 count)));
  };
  EXPECT_TRUE(world.resolve({rule(4)}));
  EXPECT_THAT(all_text(world.resolve({rule(3)}).error()), HasSubstr("another count"));
  EXPECT_THAT(all_text(world.resolve({rule(5)}).error()), HasSubstr("another count"));
}

TEST(Fusion, R47_AStackUnderAConcatOfItsDimMustSayItsCount) {
  World world{{{"t", {4, 3}}}, {}};
  for (const char* key : {"a.0", "a.1", "b.0", "b.1"}) world.checkpoint.emplace(key, Shape{3});
  const auto rule = [](std::string_view count) {
    return Rule::build("cat", "t",
                       expression_of(fmt::format(R"({{"concat": {{"dim": 0, "parts": [
      {{"stack": {{"dim": 0, "over": "e", {0} "of": "a.{{e}}"}}}},
      {{"stack": {{"dim": 0, "over": "e", {0} "of": "b.{{e}}"}}}}]}}}})",
                                                 count)));
  };
  EXPECT_TRUE(world.resolve({rule("\"count\": 2,")}));
  EXPECT_THAT(all_text(world.resolve({rule("")}).error()), HasSubstr("\"count\""));
}

TEST(Fusion, R47_CountsAreSeenThroughEveryOperation) {
  World world{{{"t", {5, 2, 6}}}, {}};
  for (int e = 0; e < 5; ++e) world.checkpoint.emplace(fmt::format("a.{}", e), Shape{6, 2});
  const std::vector<std::string> texts = {
      R"({"transpose": {"dims": [1, 2], "of": {"stack": {"dim": 0, "over": "e", "of": "a.{e}"}}}})",
      R"({"permute": {"order": [1, 2, 0], "of": {"stack": {"dim": 1, "over": "e",
          "of": {"transpose": {"dims": [0, 1], "of": {"transpose": {"dims": [0, 1], "of": "a.{e}"}}}}}}}})",
      R"({"stack": {"dim": 0, "over": "e", "of": {"permute": {"order": [1, 0], "of": "a.{e}"}}}})",
      R"({"interleave": {"dim": 2, "of": {"stack": {"dim": 0, "over": "e", "of": {"transpose": {"dims": [0, 1], "of": "a.{e}"}}}}}})"};
  for (const std::string& text : texts) {
    const auto resolved = world.resolve({Rule::build("r", "t", expression_of(text))});
    if (text.find("permute\": {\"order\": [1, 2, 0]") != std::string::npos) {
      // The stack's dim 1 is the target's dim 0.
      ASSERT_TRUE(resolved) << text << all_text(resolved.error());
      EXPECT_EQ(resolved->expressions.at("t").keys().size(), 5U);
      continue;
    }
    ASSERT_TRUE(resolved) << text << all_text(resolved.error());
    const auto pieces = expand(resolved->expressions.at("t"), world.shape_of());
    ASSERT_TRUE(pieces) << text;
    EXPECT_EQ(pieces->shape, (Shape{5, 2, 6})) << text;
  }
}

TEST(Fusion, R47_SquareWeightsAreTransposedByTheRuleAndNeverByShape) {
  const World world{{{"square", {4, 4}}, {"plain", {4, 4}}}, {{"s", {4, 4}}, {"plain", {4, 4}}}};
  const auto resolved = world.resolve(
      {Rule::build("transpose", "square", expression_of(R"({"transpose": {"dims": [0, 1], "of": "s"}})"))});
  ASSERT_TRUE(resolved);
  EXPECT_EQ(resolved->expressions.at("square"), Expression::permute(Expression::source("s"), {1, 0}));
  EXPECT_EQ(resolved->expressions.at("plain"), Expression::source("plain"));
  // Nor is a shape that would fit transposed: the planner finds the mismatch.
  const World oblong{{{"w", {2, 3}}}, {{"w", {3, 2}}}};
  EXPECT_EQ(oblong.resolve({})->expressions.at("w"), Expression::source("w"));
}

TEST(Fusion, R47_OneKeySplitsIntoSeveralTensors) {
  const World world{{{"q", {3, 2}}, {"k", {3, 2}}, {"v", {1, 2}}}, {{"qkv", {7, 2}}}};
  std::vector<Rule> rules;
  for (const auto& [name, index] : std::map<std::string, int>{{"q", 0}, {"k", 1}, {"v", 2}}) {
    rules.push_back(Rule::build(
        name, name,
        expression_of(fmt::format(R"({{"chunk": {{"dim": 0, "index": {}, "count": 3, "of": "qkv"}}}})", index))));
  }
  const auto resolved = world.resolve(rules);
  ASSERT_TRUE(resolved) << all_text(resolved.error());
  EXPECT_EQ(resolved->expressions.at("v"), Expression::slice(Expression::source("qkv"), 0, 6, 7));
  EXPECT_THAT(resolved->unread, IsEmpty());
}

TEST(Fusion, R47_AChunkThatTorchWouldNotMakeIsAnError) {
  const World world{{{"t", {1}}}, {{"a", {4}}}};
  const auto resolved = world.resolve(
      {Rule::build("r", "t", expression_of(R"({"chunk": {"dim": 0, "index": 2, "count": 3, "of": "a"}})"))});
  ASSERT_FALSE(resolved);
  EXPECT_THAT(all_text(resolved.error()), HasSubstr("leaves no chunk 2"));
}

TEST(Fusion, R47_ShapesThatDoNotDivideAreErrors) {
  const World world{{{"t", {6}}}, {{"a", {6}}, {"odd", {5}}}};
  for (const char* text : {R"({"interleave": {"dim": 0, "of": "odd"}})", R"({"rope": {"heads": 2, "of": "a"}})",
                           R"({"rope": {"heads": 4, "of": "a"}})", R"({"interleave": {"dim": 1, "of": "a"}})",
                           R"({"transpose": {"dims": [0, 1], "of": "a"}})"}) {
    const auto resolved = world.resolve({Rule::build("r", "t", expression_of(text))});
    ASSERT_FALSE(resolved) << text;
    EXPECT_EQ(resolved.error().front().tensor, "t");
  }
}

TEST(Fusion, R47_AStackBeyondReasonIsRefusedBeforeItIsCounted) {
  const World world{{{"t", {std::uint64_t{1} << 60, 0}}}, {{"a.0", {0}}}};
  const auto resolved =
      world.resolve({Rule::build("r", "t", expression_of(R"({"stack": {"dim": 0, "over": "e", "of": "a.{e}"}})"))});
  ASSERT_FALSE(resolved);
  EXPECT_THAT(all_text(resolved.error()), HasSubstr("too many"));
}

TEST(Fusion, AnOptionalBuildLeavesAFusedCheckpointAlone) {
  const World world{{{"layers.0.experts.gate_up", {2, 6, 4}}}, {{"layers.0.experts.gate_up", {2, 6, 4}}}};
  const auto resolved = world.resolve({gate_up().make_optional()});
  ASSERT_TRUE(resolved);
  EXPECT_EQ(resolved->decided_by.at("layers.0.experts.gate_up"), "");
}

TEST(Fusion, ATensorWithoutAnySourceIsLeftToPolicyWithANote) {
  World world = mixture(4);
  world.model.emplace("layers.1.experts.gate_up", Shape{4, 6, 4});
  const auto resolved = world.resolve({gate_up()});
  ASSERT_TRUE(resolved);
  EXPECT_FALSE(resolved->expressions.contains("layers.1.experts.gate_up"));
  EXPECT_THAT(resolved->tensor_notes.at("layers.1.experts.gate_up"),
              AllOf(HasSubstr("moe"), HasSubstr("layers.1.experts.0.w1"), HasSubstr("and 5 more")));
}

TEST(Fusion, R48_APayloadAndItsScalesAreFusedAlikeAndNoneMayBeMissing) {
  World world = mixture(3);
  world.model.emplace("layers.0.experts.gate_up_scale_inv", Shape{3, 2, 1});
  for (int e = 0; e < 3; ++e) {
    world.checkpoint.emplace(fmt::format("layers.0.experts.{}.w1_scale_inv", e), Shape{1, 1});
    world.checkpoint.emplace(fmt::format("layers.0.experts.{}.w3_scale_inv", e), Shape{1, 1});
  }
  const std::vector<Rule> rules = {gate_up(), Rule::build("scales", "layers.{l}.experts.gate_up_scale_inv",
                                                          expression_of(R"({"concat": {"dim": 1, "parts": [
      {"stack": {"dim": 0, "over": "e", "of": "layers.{l}.experts.{e}.w1_scale_inv"}},
      {"stack": {"dim": 0, "over": "e", "of": "layers.{l}.experts.{e}.w3_scale_inv"}}]}})"))};
  const auto resolved = world.resolve(rules);
  ASSERT_TRUE(resolved) << all_text(resolved.error());
  const auto payload = resolved->expressions.at("layers.0.experts.gate_up");
  const auto scales = resolved->expressions.at("layers.0.experts.gate_up_scale_inv");
  for (std::size_t half : {0U, 1U}) {
    for (std::size_t e = 0; e < 3; ++e)
      EXPECT_EQ(stacked_keys(scales.parts[half])[e], stacked_keys(payload.parts[half])[e] + "_scale_inv");
  }
  world.checkpoint.erase("layers.0.experts.1.w3_scale_inv");
  const auto lacking = world.resolve(rules);
  ASSERT_FALSE(lacking);
  EXPECT_THAT(all_text(lacking.error()), HasSubstr("experts.1.w3_scale_inv"));
}

// With two ranks of expert parallelism, rank 1 has experts 2 and 3: by these names, and of these files.
TEST(Fusion, R59_ExpertsKeepTheirGlobalNumbers) {
  World world = mixture(4);
  const auto fused = world.resolve({gate_up()});
  ASSERT_TRUE(fused);
  EXPECT_THAT(
      stacked_keys(fused->expressions.at("layers.0.experts.gate_up").parts[0]),
      ElementsAre("layers.0.experts.0.w1", "layers.0.experts.1.w1", "layers.0.experts.2.w1", "layers.0.experts.3.w1"));
  world.model = {{"layers.0.experts.2.w1", {3, 4}}, {"layers.0.experts.3.w1", {3, 4}}};
  const auto owned = world.resolve({});
  ASSERT_TRUE(owned);
  for (const auto& [name, expression] : owned->expressions) {
    EXPECT_EQ(expression, Expression::source(std::string(name)));
  }
  world.model = {{"upper.gate", {2, 3, 4}}};
  const auto upper = world.resolve({Rule::build(
      "upper", "upper.gate",
      expression_of(R"({"stack": {"dim": 0, "over": "e", "first": 2, "of": "layers.0.experts.{e}.w1"}})"))});
  ASSERT_TRUE(upper);
  EXPECT_THAT(stacked_keys(upper->expressions.at("upper.gate")),
              ElementsAre("layers.0.experts.2.w1", "layers.0.experts.3.w1"));
}

}  // namespace
}  // namespace lading::mapping
