// What a plan says of tensors that are dequantized: JSON, explanation, digest, difference, groups of ranks (R48).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>

#include "base/json_reader.h"
#include "plan/explain.h"
#include "plan/plan_diff.h"
#include "plan/plan_for_tests.h"
#include "plan/rank_groups.h"
#include "support/planner_support.h"

namespace lading::plan {
namespace {

using mapping::Expression;
using planner::world::param;
using planner::world::shard;
using planner::world::World;
using testing::HasSubstr;
using testing::Not;

// 64 rows in blocks of 4 x 3, whose scales lie in a file of their own.
World quantized_world(std::uint64_t ranks) {
  World world{{{"p", {64, 7}, DType::kF8E4M3}, {"s", {16, 3}, DType::kF32, 1}, {"plain", {64}, DType::kBF16, 2}},
              {param("plain", {64}, DType::kBF16), param("w", {64, 7}, DType::kBF16)}};
  world.build("w", Expression::dequantize("p", "s", Shape{4, 3}));
  world.mesh({{"x", ranks}}).place("*", {shard(0, 0)});
  return world;
}

Plan made_of(const World& world) {
  auto plan = world.plan();
  LADING_CHECK(plan.has_value());
  return *std::move(plan);
}

TEST(DequantizePlan, JsonSaysScalesBlockAndWhatIsReadOfThem) {
  const Plan plan = made_of(quantized_world(2));
  const std::string text = plan_json(plan);
  parsed(text);
  EXPECT_THAT(text, HasSubstr(R"("expression": {"dequantize": {"of": "p", "scales": "s", "block": [4, 3]}})"));
  EXPECT_THAT(text, HasSubstr(R"("dtype": "F8_E4M3", "shape": [64, 7], "scales": "s", "block": [4, 3]})"));
  EXPECT_THAT(text, HasSubstr(R"({"scales": "s", "of": "p", "begin": )"));
  EXPECT_THAT(text, HasSubstr(R"("size": 96})")) << "8 of 16 rows of 3 scales on each rank";
  World without = quantized_world(2);
  without.mapping.rules.clear();
  without.tensors.pop_back();
  without.policy.allow_unexpected = {"*"};
  EXPECT_THAT(plan_json(made_of(without)), Not(HasSubstr("scale")));
}

TEST(DequantizePlan, ExplainSaysPayloadScalesAndBlock) {
  const Plan plan = made_of(quantized_world(2));
  std::string text;
  for (const ExplainedFact& fact : explain(plan, *plan.find("w"), &plan.ranks.back()))
    text += fact.topic + ": " + fact.text + "\n";
  for (const char* part :
       {"expression: dequantize(p, s, [4, 3])", "\"p\" F8_E4M3 [64, 7]",
        "dequantized: each block of [4, 3] of \"p\" times its scale in \"s\", rounded once to BF16"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  std::string plain;
  for (const ExplainedFact& fact : explain(plan, *plan.find("plain"), &plan.ranks.back())) plain += fact.text;
  EXPECT_THAT(plain, Not(HasSubstr("dequantized")));
}

TEST(DequantizePlan, TheDigestCoversScalesAndBlock) {
  const World world = quantized_world(2);
  std::set<std::string> digests = {digest(made_of(world))};
  const auto add = [&](const std::function<void(World&)>& change) {
    World changed = world;
    change(changed);
    return digests.insert(digest(made_of(changed))).second;
  };
  const auto build = [](const Expression& expression) {
    return [expression](World& to) {
      to.mapping.rules.clear();
      to.build("w", expression);
    };
  };
  EXPECT_TRUE(add([&](World& w) {
    w.keys.push_back({"t", {16, 3}, DType::kF32, 1});
    w.policy.allow_unexpected = {"*"};
    build(Expression::dequantize("p", "t", Shape{4, 3}))(w);
  }));
  EXPECT_TRUE(add([&](World& w) {
    w.keys.push_back({"t", {16, 3}, DType::kF32, 1});
    w.policy.allow_unexpected = {"*"};
  }));
  EXPECT_TRUE(add([&](World& w) { w.keys[1].dtype = DType::kBF16; }));
  EXPECT_TRUE(add([&](World& w) {
    w.keys[1].shape = {13, 3};
    build(Expression::dequantize("p", "s", Shape{5, 3}))(w);
  }));
  EXPECT_TRUE(add([&](World& w) { build(Expression::dequantize("p", "s", Shape{4, 3}, DType::kF32))(w); }));
  EXPECT_FALSE(add([](World&) {}));
  Plan plan = made_of(world);
  plan.ranks[0].scale_reads.clear();
  EXPECT_TRUE(digests.contains(digest(plan))) << "what ranks do is not in it";
}

TEST(DequantizePlan, TheDifferenceOfTwoPlansNamesTheTensor) {
  World changed = quantized_world(2);
  changed.keys[1].shape = {13, 3};
  changed.mapping.rules.clear();
  changed.build("w", Expression::dequantize("p", "s", Shape{5, 3}));
  const auto difference =
      diff_plans(parsed(plan_json(made_of(quantized_world(2)))), parsed(plan_json(made_of(changed))));
  ASSERT_TRUE(difference);
  EXPECT_TRUE(std::any_of(difference->changes.begin(), difference->changes.end(),
                          [](const PlanChange& change) { return change.name == "w"; }));
}

std::uint64_t begin_of(const Offset& offset, std::size_t member, std::uint64_t rank) {
  if (!offset.list.empty()) return offset.list[member];
  return offset.base + (offset.steps.empty() ? 0 : offset.steps[0] * rank);
}

TEST(DequantizePlan, GroupsOfRanksSayWhereTheirScalesBegin) {
  for (const std::uint64_t ranks : {2U, 3U, 4U, 5U, 8U, 16U, 32U, 64U}) {
    const Plan plan = made_of(quantized_world(ranks));
    std::size_t told = 0;
    for (const RankGroup& group : group_ranks(plan)) {
      const std::size_t reads = plan.ranks[group.members.front()].scale_reads.size();
      ASSERT_GE(group.offsets.size(), reads);
      for (std::size_t m = 0; m < group.members.size(); ++m, ++told) {
        const RankPlan& rank = plan.ranks[group.members[m]];
        ASSERT_EQ(rank.scale_reads.size(), reads);
        for (std::size_t i = 0; i < reads; ++i) {
          const Offset& offset = group.offsets[group.offsets.size() - reads + i];
          const std::uint64_t begin = begin_of(offset, m, rank.rank);
          EXPECT_EQ(begin, rank.scale_reads[i].bytes.begin) << "rank " << rank.rank << " of " << ranks;
        }
      }
    }
    EXPECT_EQ(told, ranks);
    if (ranks == 4) {
      EXPECT_EQ(group_ranks(plan).size(), 1U) << "all alike" << plan_json(plan);
    }
  }
}

}  // namespace
}  // namespace lading::plan
