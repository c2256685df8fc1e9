#include "mapping/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mapping/resolve_for_tests.h"

namespace lading::mapping {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

NameTemplate parsed(std::string_view text) {
  auto result = NameTemplate::parse(text);
  EXPECT_TRUE(result) << text;
  return *std::move(result);
}

TEST(NameTemplate, BindsWholeNumbers) {
  const NameTemplate name = parsed("layers.{layer}.experts.{e}.w1");
  EXPECT_THAT(*name.match("layers.10.experts.9.w1"), ElementsAre(Pair("layer", "10"), Pair("e", "9")));
  EXPECT_EQ(name.render({{"e", "3"}, {"layer", "2"}}), "layers.2.experts.3.w1");
  for (const char* other :
       {"layers.x.experts.9.w1", "layers..experts.9.w1", "layers.1.experts.9.w10", "layers.01.experts.9.w1",
        "layers.1.2.experts.9.w1", "model.layers.1.experts.9.w1", "layers.1.experts.9", ""}) {
    EXPECT_FALSE(name.match(other)) << other;
  }
}

TEST(NameTemplate, OneVariableTwiceIsOneNumber) {
  const NameTemplate name = parsed("a.{i}.b.{i}");
  EXPECT_TRUE(name.match("a.4.b.4"));
  EXPECT_FALSE(name.match("a.4.b.5"));
  EXPECT_THAT(name.variables(), ElementsAre("i"));
}

TEST(NameTemplate, ANumberMayEndAComponent) {
  EXPECT_TRUE(parsed("ngram.shard_{i}.weight").match("ngram.shard_11.weight"));
}

TEST(NameTemplate, BracesInNames) {
  const NameTemplate name = parsed("a{{b}}.{i}");
  EXPECT_TRUE(name.match("a{b}.7"));
  EXPECT_EQ(name.text(), "a{{b}}.{i}");
  EXPECT_EQ(parsed(NameTemplate::literal("x{y}").text()), NameTemplate::literal("x{y}"));
}

TEST(NameTemplate, RefusesWhatCouldMatchInTwoWays) {
  for (const char* text : {"", "a{", "a{}", "a{b c}", "a}", "{a}{b}", "{a}1", "1{a}", "{1}", "{a.b}"})
    EXPECT_FALSE(NameTemplate::parse(text)) << text;
}

TEST(ExpressionTemplate, VariablesMustStandForSomething) {
  const auto bad = [](std::string_view text) {
    return find_bad_variable(expression_of(text), {"l"}).value_or("nothing");
  };
  EXPECT_EQ(bad(R"("a.{l}")"), "nothing");
  EXPECT_THAT(bad(R"("a.{m}")"), HasSubstr("{m}"));
  EXPECT_THAT(bad(R"({"stack": {"dim": 0, "over": "l", "of": "a.{l}"}})"), HasSubstr("already bound"));
  EXPECT_THAT(bad(R"({"stack": {"dim": 0, "over": "e", "of": "a.{l}"}})"), HasSubstr("uses {e}"));
  EXPECT_THAT(bad(R"({"concat": {"dim": 0, "parts": [{"stack": {"dim": 0, "over": "e", "of": "a.{e}"}}, "b.{e}"]}})"),
              HasSubstr("{e}"));
}

TEST(ExpressionTemplate, WhatPeopleSayBecomesMovements) {
  const World world{{}, {{"a", {12, 8}}}};
  const auto lowered = [&](std::string_view text) {
    const ExpressionTemplate expression = expression_of(text);
    auto result = lower({expression, {}, nullptr}, world.shape_of());
    EXPECT_TRUE(result) << text;
    return result->text();
  };
  EXPECT_EQ(lowered(R"({"transpose": {"dims": [0, 1], "of": "a"}})"), "permute([1, 0], a)");
  EXPECT_EQ(lowered(R"({"chunk": {"dim": 0, "index": 2, "count": 5, "of": "a"}})"), "slice(0, 6..9, a)");
  EXPECT_EQ(lowered(R"({"interleave": {"dim": 1, "of": "a"}})"), "rearrange(1, [4, 2] to [1, 0], a)");
  EXPECT_EQ(lowered(R"({"interleave": {"dim": 1, "inverse": true, "of": "a"}})"), "rearrange(1, [2, 4] to [1, 0], a)");
  EXPECT_EQ(lowered(R"({"rope": {"heads": 3, "of": "a"}})"), "rearrange(0, [3, 2, 2] to [0, 2, 1], a)");
  EXPECT_EQ(lowered(R"({"rope": {"heads": 2, "inverse": true, "of": "a"}})"),
            "rearrange(0, [2, 2, 3] to [0, 2, 1], a)");
}

TEST(ExpressionTemplate, AnExpressionComesBackUnchanged) {
  const Expression expression = Expression::pad(
      Expression::reshape(
          Expression::rearrange(Expression::stack(0, {Expression::source("a{b}"), Expression::source("c")}), 1, {2, 6},
                                {1, 0}),
          {24, 8}),
      0, 32, -1.5);
  const World world{{}, {{"a{b}", {12, 8}}, {"c", {12, 8}}}};
  const ExpressionTemplate literal = ExpressionTemplate::literal(expression);
  const auto lowered = lower({literal, {}, nullptr}, world.shape_of());
  ASSERT_TRUE(lowered);
  EXPECT_EQ(*lowered, expression);
}

}  // namespace
}  // namespace lading::mapping
