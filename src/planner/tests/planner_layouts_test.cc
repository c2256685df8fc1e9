// Layouts through the whole planner: which elements of which key each rank gets. Small tensors, and index lists
// that were written by hand.
#include <gtest/gtest.h>

#include "layout/strategy.h"
#include "support/planner_support.h"

namespace lading::planner {
namespace {

using namespace world;  // NOLINT(google-build-using-namespace): the tests' own words
using layout::Strategy;
using mapping::Expression;

std::vector<std::uint64_t> range(std::uint64_t begin, std::uint64_t end) {
  std::vector<std::uint64_t> list(end - begin);
  std::iota(list.begin(), list.end(), begin);
  return list;
}

// What all ranks hold of "w", or why there is no plan.
std::vector<std::string> shares(const World& world) {
  const auto plan = world.plan();
  if (!plan) return {verdict(plan)};
  std::vector<std::string> list;
  for (const RankPlan& rank : plan->ranks) list.push_back(held(*plan, rank.rank, "w"));
  return list;
}

// Parameters, buffers of every kind, and a scalar, under a strategy of the command line.
World everything_under(Strategy strategy, std::vector<layout::Axis> axes) {
  World world{{{"w", {4, 2}}, {"input_max", {}}, {"layer_scalar", {1}}, {"std_bias", {3}}},
              {param("w", {4, 2}), buffer("input_max", {}), buffer("layer_scalar", {1}), buffer("std_bias", {3}),
               derived(table("inv_freq", {2})), init(table("softcap", {}), fill(50))}};
  world.mesh(std::move(axes)).cuda(8);
  std::vector<layout::TensorToPlace> infos;
  for (const Tensor& t : world.tensors) infos.push_back({t.name, t.shape, t.kind == Kind::kParameter});
  auto made = layout::make_layout({strategy, world.layout.mesh, world.layout.devices, {}}, infos);
  LADING_CHECK(made.has_value());
  world.layout = made->layout;
  return world;
}

TEST(PlannerLayouts, R1_R4_R5_R8_BuffersAreOnAllRanksUnderEveryStrategy) {
  const std::vector<std::pair<Strategy, std::vector<layout::Axis>>> strategies = {
      {Strategy::kSingle, {}},         {Strategy::kDdp, {{"dp", 2}}},
      {Strategy::kFsdp2, {{"dp", 2}}}, {Strategy::kHsdp, {{"replicate", 2}, {"shard", 2}}},
      {Strategy::kTp, {{"tp", 2}}},    {Strategy::kFsdp2Tp, {{"dp", 2}, {"tp", 2}}},
      {Strategy::kZero3, {{"dp", 4}}},
  };
  for (const auto& [strategy, axes] : strategies) {
    const auto plan = everything_under(strategy, axes).plan();
    ASSERT_TRUE(plan) << layout::word(strategy) << ": " << verdict(plan);
    EXPECT_EQ(plan->statements.size(), 6U);
    for (const RankPlan& rank : plan->ranks) {
      SCOPED_TRACE(std::string(layout::word(strategy)) + " rank " + std::to_string(rank.rank));
      EXPECT_EQ(rank.destinations.size(), 6U);
      EXPECT_EQ(held(*plan, rank.rank, "input_max"), "input_max:0");
      EXPECT_EQ(held(*plan, rank.rank, "layer_scalar"), "layer_scalar:0");
      EXPECT_EQ(held(*plan, rank.rank, "std_bias"), of("std_bias", {0, 1, 2}));
      for (const Destination& d : rank.destinations) EXPECT_EQ(d.device, "cuda:" + std::to_string(rank.rank));
    }
  }
}

TEST(PlannerLayouts, R16_R17_ReplicasGetTheSameBytesAndTheSameRecipe) {
  World world{{{"w", {4}}}, {param("w", {4}), init(param("h", {4}), normal(0.5))}};
  world.policy.allow_missing = {"h"};
  world.policy.seed = 3;
  world.mesh({{"replicate", 2}, {"shard", 2}}).place("*", {shard(1, 0)});
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  for (const std::uint64_t rank : {0U, 1U}) {
    for (const char* name : {"w", "h"}) {
      const Destination* here = find(*plan, rank, name);
      const Destination* there = find(*plan, rank + 2, name);
      EXPECT_EQ(here->transfers, there->transfers);
      EXPECT_EQ(here->owned_elems, there->owned_elems);
    }
  }
  EXPECT_EQ(shares(world), (std::vector<std::string>{"w:0 w:1", "w:2 w:3", "w:0 w:1", "w:2 w:3"}));
  // A random tensor is a recipe, a seed and a name: nothing of a rank or a layout is in it.
  const auto alone = world.mesh({}).plan();
  EXPECT_FALSE(alone) << "the layout's rules name axes";
  world.layout.rules.clear();
  const auto single = world.plan();
  ASSERT_TRUE(single) << verdict(single);
  EXPECT_EQ(single->find("h")->recipe, plan->find("h")->recipe);
  EXPECT_EQ(single->seed, plan->seed);
}

TEST(PlannerLayouts, R20_AVocabularyIsPaddedByZeros) {
  World world{{{"v", {5, 2}}}, {param("w", {8, 2})}};
  world.build("w", Expression::pad(Expression::source("v"), 0, 8, 0));
  world.mesh({{"tp", 4}}).place("w", {shard(0, 0)});
  EXPECT_EQ(shares(world),
            (std::vector<std::string>{of("v", {0, 1, 2, 3}), of("v", {4, 5, 6, 7}), "v:8 v:9 =0 =0", "=0 =0 =0 =0"}));
}

TEST(PlannerLayouts, R34_R35_EveryRankHasItsOwnDevice) {
  World world = one({4});
  world.mesh({{"dp", 4}}).cuda(2);
  auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  std::vector<std::string> devices;
  for (std::uint64_t rank = 0; rank < 4; ++rank) devices.push_back(device_of(*plan, rank, "w"));
  EXPECT_EQ(devices, (std::vector<std::string>{"cuda:0", "cuda:1", "cuda:0", "cuda:1"}));

  world.layout.devices.list = {{layout::DeviceType::kCuda, 3},
                               {layout::DeviceType::kCuda, 1},
                               {layout::DeviceType::kCpu, 0},
                               {layout::DeviceType::kCuda, 0}};
  plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(device_of(*plan, 0, "w"), "cuda:3");
  EXPECT_EQ(device_of(*plan, 2, "w"), "cpu");
  world.layout.devices.list.pop_back();
  EXPECT_EQ(verdict(world), "R34") << "a device for every rank, or a rule";
}

TEST(PlannerLayouts, R36_OffloadedParametersAreOnTheCpuAndBuffersAreNot) {
  World world{{{"w", {4}}, {"b", {}}}, {param("w", {4}), buffer("b", {}), derived(table("rope", {2}))}};
  world.mesh({{"dp", 2}}).cuda(2).place("w", {shard(0, 0)});
  world.layout.rules[0].placement.device = layout::DeviceRule::kCpu;
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  for (const std::uint64_t rank : {0U, 1U}) {
    EXPECT_EQ(device_of(*plan, rank, "w"), "cpu");
    EXPECT_EQ(device_of(*plan, rank, "b"), "cuda:" + std::to_string(rank));
    EXPECT_EQ(device_of(*plan, rank, "rope"), "cuda:" + std::to_string(rank));
  }
}

TEST(PlannerLayouts, R53_Chunks) {
  World world = one({5});
  world.mesh({{"dp", 4}}).place("w", {shard(0, 0)});
  EXPECT_EQ(shares(world), (std::vector<std::string>{"w:0 w:1", "w:2 w:3", "w:4", ""}));
  const auto plan = world.plan();
  ASSERT_NE(find(*plan, 3, "w"), nullptr) << "an empty share is a share";
  EXPECT_EQ(find(*plan, 3, "w")->buffer_bytes, 0U);
}

TEST(PlannerLayouts, R53_AnUnevenCutThatMustBeEvenIsRefused) {
  World world = one({4, 3});
  world.mesh({{"dp", 2}}).place("w", {shard(0, 1)});
  EXPECT_EQ(shares(world), (std::vector<std::string>{of("w", {0, 1, 3, 4, 6, 7, 9, 10}), of("w", {2, 5, 8, 11})}));
  world.layout.rules[0].placement.slots[0].cuts[0].even = true;
  EXPECT_EQ(verdict(world), "R53 w");
}

TEST(PlannerLayouts, R54_FsdpCutsWhatTensorParallelismLeft) {
  World world = one({25});
  world.mesh({{"dp", 4}, {"tp", 2}}).place("w", {shard(1, 0), shard(0, 0)});
  // tp: 0..13 and 13..25; then chunks of ceil(13/4) = 4 and ceil(12/4) = 3. Ranks are dp-major.
  EXPECT_EQ(shares(world),
            (std::vector<std::string>{of("w", {0, 1, 2, 3}), of("w", {13, 14, 15}), of("w", {4, 5, 6, 7}),
                                      of("w", {16, 17, 18}), of("w", {8, 9, 10, 11}), of("w", {19, 20, 21}),
                                      of("w", {12}), of("w", {22, 23, 24})}));
}

TEST(PlannerLayouts, R55_StridedShardsAreRunLists) {
  World world{{{"gate", {4, 1}}, {"up", {4, 1}}}, {param("w", {8, 1})}};
  world.build("w", Expression::concat(0, {Expression::source("gate"), Expression::source("up")}));
  world.mesh({{"tp", 2}}).place("w", {strided(0, 0, 2)});
  EXPECT_EQ(shares(world), (std::vector<std::string>{"gate:0 gate:1 up:0 up:1", "gate:2 gate:3 up:2 up:3"}));
  World plain = one({8, 1});
  plain.mesh({{"tp", 2}}).place("w", {strided(0, 0, 2)});
  EXPECT_EQ(shares(plain), (std::vector<std::string>{of("w", {0, 1, 4, 5}), of("w", {2, 3, 6, 7})}));
}

TEST(PlannerLayouts, R56_Zero3PadsWithZeros) {
  World world = one({3, 5});
  world.mesh({{"dp", 4}}).place("w", {flat({0})});
  EXPECT_EQ(shares(world), (std::vector<std::string>{of("w", range(0, 4)), of("w", range(4, 8)), of("w", range(8, 12)),
                                                     "w:12 w:13 w:14 =0"}));
  const auto plan = world.plan();
  EXPECT_EQ(find(*plan, 3, "w")->owned_elems, 3U) << "padding is nobody's";
  EXPECT_EQ(find(*plan, 3, "w")->buffer_bytes, 16U);
  // Padding is defined where no file is either.
  world.keys = {{"v", {1}}};
  world.tensors = {param("v", {1}), init(param("w", {3, 5}), normal(1))};
  world.policy.allow_missing = {"w"};
  EXPECT_EQ(shares(world).back(), ". . . =0");
}

TEST(PlannerLayouts, R56_HpzKeepsASecondPartition) {
  // Four ranks, two nodes of two: the whole world cuts the first partition, the node the second, and both are
  // padded to the world.
  World world = one({5});
  world.mesh({{"node", 2}, {"local", 2}}).place("w", {flat({0, 1})});
  world.layout.rules[0].placement.slots.push_back({"secondary", {flat({1}, 4)}});
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  std::vector<std::string> second;
  for (std::uint64_t rank = 0; rank < 4; ++rank) second.push_back(held(*plan, rank, "w", "secondary"));
  EXPECT_EQ(shares(world), (std::vector<std::string>{"w:0 w:1", "w:2 w:3", "w:4 =0", "=0 =0"}));
  const std::string tail = "w:4 =0 =0 =0";
  EXPECT_EQ(second, (std::vector<std::string>{of("w", range(0, 4)), tail, of("w", range(0, 4)), tail}));
  EXPECT_EQ(rank_of(*plan, 0)->owned_bytes, 8U + 16U);
}

TEST(PlannerLayouts, R11_Fsdp1UnitsShareABuffer) {
  // 3 + 1 (a gap for alignment) + 4 elements and 2 of tail, in two parts of 5.
  World world{{{"w", {3}}, {"v", {2, 2}}}, {param("w", {3}), param("v", {2, 2})}};
  world.mesh({{"dp", 2}})
      .place("w", {flat_parameter(0, "block", 0, 10)})
      .place("v", {flat_parameter(0, "block", 4, 10)});
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(held(*plan, 0, "w"), "w:0 w:1 w:2 . .");
  EXPECT_EQ(held(*plan, 0, "v"), ". . . . v:0");
  EXPECT_EQ(held(*plan, 1, "v"), "v:1 v:2 v:3 . .");
  EXPECT_EQ(held(*plan, 1, "w"), ". . . . .");
  EXPECT_EQ(rank_of(*plan, 0)->owned_bytes, 20U);
  world.layout.rules[1].placement.slots[0].cuts[0].group_offset_elems = 2;
  EXPECT_EQ(verdict(world), "R11 v") << "two tensors in one place";
}

TEST(PlannerLayouts, R57_ABufferMayBeCut) {
  World world{{{"w", {4}}}, {buffer("w", {4})}};
  world.mesh({{"tp", 2}}).place("w", {shard(0, 0)});
  EXPECT_EQ(shares(world), (std::vector<std::string>{"w:0 w:1", "w:2 w:3"}));
  EXPECT_EQ(world.plan()->find("w")->placement.slots[0].cuts, (std::vector<Cut>{shard(0, 0)}));
}

TEST(PlannerLayouts, R58_R59_ExpertsAreReadByWhoOwnsThemUnderTheirGlobalIds) {
  World world{{}, {param("w", {4, 2})}};
  std::vector<Expression> experts;
  for (const char* key : {"e.0", "e.1", "e.2", "e.3"}) {
    world.keys.push_back({key, {2}});
    experts.push_back(Expression::source(key));
  }
  world.build("w", Expression::stack(0, experts)).mesh({{"ep", 2}}).place("w", {shard(0, 0)});
  EXPECT_EQ(shares(world), (std::vector<std::string>{"e.0:0 e.0:1 e.1:0 e.1:1", "e.2:0 e.2:1 e.3:0 e.3:1"}));
  const auto plan = world.plan();
  // Every rank reads its own 16 bytes, and none of another's.
  for (const RankPlan& rank : plan->ranks) {
    ASSERT_EQ(rank.reads.size(), 1U);
    EXPECT_EQ(rank.reads[0].begin_bytes, 100 + 16 * rank.rank);
    EXPECT_EQ(rank.read_bytes, 16U);
  }
}

TEST(PlannerLayouts, R48_PackedElementsAreCutAtWholeBytes) {
  World rows = one({4, 2}, DType::kF4);
  rows.mesh({{"tp", 2}}).place("w", {shard(0, 0)});
  EXPECT_EQ(shares(rows), (std::vector<std::string>{of("w", {0, 1, 2, 3}), of("w", {4, 5, 6, 7})}));
  World columns = one({4, 2}, DType::kF4);
  columns.mesh({{"tp", 2}}).place("w", {shard(0, 1)});
  EXPECT_EQ(verdict(columns), "R48 w") << "every run would begin or end inside a byte";
  World odd = one({2, 3}, DType::kF4);
  odd.mesh({{"tp", 2}}).place("w", {shard(0, 0)});
  EXPECT_EQ(verdict(odd), "R48 w") << "a share of a byte and a half; one rank tells it for all";
}

// 12 packed elements over 5 ranks are 3, 3, 3, 3 and none: the last rank alone would see nothing wrong.
TEST(PlannerLayouts, R41_R48_AByteThatIsCutIsTheSameVerdictForEveryRank) {
  World world{{{"w", {12, 1}, DType::kF4}}, {param("w", {12, 1}, DType::kF4)}};
  world.mesh({{"tp", 5}}).place("w", {shard(0, 0)});
  EXPECT_EQ(verdict(world.plan({4})), verdict(world.plan({0})));
  EXPECT_EQ(all_text(world.plan({1}).error()), all_text(world.plan({0}).error()));
}

TEST(PlannerLayouts, R48_ScalesAndRaggedBlocksLoadAsTheyAre) {
  // 1000 rows in blocks of 128 have 8 scales, the last for 104 rows; they lie in another shard.
  World world{{{"w", {1000, 128}, DType::kF8E4M3, 0}, {"w_scale_inv", {8, 1}, DType::kF32, 1}},
              {param("w", {1000, 128}, DType::kF8E4M3), param("w_scale_inv", {8, 1})}};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(plan->find("w")->storage, DType::kF8E4M3);
  EXPECT_EQ(held(*plan, 0, "w_scale_inv"), of("w_scale_inv", range(0, 8)));
  world.keys.pop_back();
  EXPECT_EQ(verdict(world), "R39 w_scale_inv") << "a payload without its scales is no weight";
  world.tensors = {param("w", {1000, 128})};
  world.policy.dtype = DType::kBF16;
  EXPECT_FALSE(world.plan()) << "dequantization is refused";
}

// Two stages name their flat units alike: the name stands for one buffer, so the refusal says what to do.
TEST(PlannerLayouts, R11_UnitsOfTwoStagesNeedTwoNames) {
  World world{{{"a", {4}}, {"b", {4}}}, {param("a", {4}), param("b", {4})}};
  world.mesh({{"pp", 2}, {"dp", 2}});
  world.place("a", {owner(0, {0}), flat_parameter(1, "block", 0, 4)})
      .place("b", {owner(0, {1}), flat_parameter(1, "block", 0, 4)});
  const auto plan = world.plan();
  ASSERT_EQ(verdict(plan), "R11 b");
  EXPECT_NE(plan.error().front().remedy.find("pipeline stage"), std::string::npos) << plan.error().front().remedy;
  world.layout.rules[1].placement.slots.front().cuts.back().flat_parameter = "block of stage 1";
  EXPECT_EQ(verdict(world), "accepted");
}

}  // namespace
}  // namespace lading::planner
