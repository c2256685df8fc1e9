// The museum's second half: experts, ranks, devices, quantized payloads.
#include <gtest/gtest.h>

#include "support/planner_support.h"

namespace lading::planner {
namespace {

using namespace world;  // NOLINT(google-build-using-namespace): the tests' own words
using mapping::Expression;

// transformers#47031: square experts were transposed by looking at their shape.
TEST(PlanMuseum, Museum33_R47_SquareExpertsAreTransposedOnlyWhereTheMappingSaysSo) {
  World world{{{"e", {2, 2}}}, {param("w", {2, 2})}};
  world.build("w", Expression::permute(Expression::source("e"), {1, 0}));
  auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(held(*plan, 0, "w"), of("e", {0, 2, 1, 3}));
  world.mapping.rules = {mapping::Rule::rename("plain", "e", "w")};
  plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(held(*plan, 0, "w"), of("e", {0, 1, 2, 3}));
}

// sglang#36438: files cut for eight ranks, loaded on four. All names are there, and half of the bytes.
TEST(PlanMuseum, Museum34_R11_R41_HalfATensorIsNotATensor) {
  World world{{{"w", {4, 2}}}, {param("w", {8, 2})}};
  world.mesh({{"tp", 4}}).place("w", {shard(0, 0)});
  EXPECT_EQ(verdict(world).rfind("R41 w", 0), 0U) << verdict(world);
}

// sglang#29659, Megatron-LM#5844: packed experts had no counterpart, and were dropped without a word.
TEST(PlanMuseum, Museum35_R1_R38_PackedExpertsAreNotDropped) {
  World world{{{"w", {2}}, {"experts.gate_up_proj", {4, 2}}},
              {param("w", {2}), param("experts.0.gate.weight", {2, 2}), param("experts.0.up.weight", {2, 2})}};
  EXPECT_EQ(verdict(world), "R39 experts.0.gate.weight; R39 experts.0.up.weight; R39 experts.gate_up_proj");
  const Expression packed = Expression::source("experts.gate_up_proj");
  world.build("experts.0.gate.weight", Expression::slice(packed, 0, 0, 2));
  world.build("experts.0.up.weight", Expression::slice(packed, 0, 2, 4));
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(held(*plan, 0, "experts.0.up.weight"), of("experts.gate_up_proj", {4, 5, 6, 7}));
}

// UniRL#385, KempnerForge#202: rank 0's experts arrived on every rank; experts were numbered anew per rank.
TEST(PlanMuseum, Museum36_Museum37_R58_R59_EachRankReadsItsOwnExpertsByTheirGlobalIds) {
  World world{{}, {param("experts", {4, 1})}};
  std::vector<Expression> parts;
  for (const char* key : {"experts.0.w", "experts.1.w", "experts.2.w", "experts.3.w"}) {
    world.keys.push_back({key, {1}});
    parts.push_back(Expression::source(key));
  }
  world.build("experts", Expression::stack(0, parts)).mesh({{"ep", 2}}).place("experts", {shard(0, 0)});
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(held(*plan, 0, "experts"), "experts.0.w:0 experts.1.w:0");
  EXPECT_EQ(held(*plan, 1, "experts"), "experts.2.w:0 experts.3.w:0");
  // Experts that are tensors of their own belong to the ranks that their global names are given to.
  World own{{{"experts.0.w", {1}}, {"experts.3.w", {1}}}, {param("experts.0.w", {1}), param("experts.3.w", {1})}};
  own.mesh({{"ep", 2}}).place("experts.0.w", {owner(0, {0})}).place("experts.3.w", {owner(0, {1})});
  const auto owned = own.plan();
  ASSERT_TRUE(owned) << verdict(owned);
  EXPECT_EQ(held(*owned, 1, "experts.3.w"), "experts.3.w:0");
  EXPECT_EQ(held(*owned, 1, "experts.0.w"), "absent");
}

// pytorch#136228: from_local guessed the global shape from an uneven shard.
TEST(PlanMuseum, Museum38_R53_UnevenShardsAddUpToTheGlobalShape) {
  World world{{{"w", {5, 2}}}, {param("w", {5, 2})}};
  world.mesh({{"dp", 4}}).place("w", {shard(0, 0)});
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(held(*plan, 2, "w"), of("w", {8, 9}));
  EXPECT_EQ(held(*plan, 3, "w"), "");
  EXPECT_EQ(plan->find("w")->shape, (Shape{5, 2}));
}

// sglang#15890, vllm#53020: with a pipeline the tied head was random, because its key is not in the file.
TEST(PlanMuseum, Museum39_R50_R51_ATiedHeadOnAnotherStageIsLoaded) {
  World world{{{"embed", {4}}, {"l.0", {2}}, {"l.1", {2}}},
              {param("embed", {4}), param("head", {4}), param("l.0", {2}), param("l.1", {2})},
              {{"embed", "head"}}};
  world.mesh({{"pp", 2}}).place("embed", {owner(0, {0})}).place("l.0", {owner(0, {0})});
  world.place("head", {owner(0, {1})}).place("l.1", {owner(0, {1})});
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(held(*plan, 1, "head"), of("embed", {0, 1, 2, 3}));
  world.keys.erase(world.keys.begin());
  EXPECT_EQ(verdict(world), "R50 embed") << "neither is there: an error, not a random head";
}

// lerobot#4042, awsome-distributed-ai#1046: all ranks on GPU 0, because "cuda" means that.
TEST(PlanMuseum, Museum41_R34_NoTwoRanksOfANodeShareADevice) {
  World world{{{"w", {4}}}, {param("w", {4})}};
  world.mesh({{"dp", 4}}).cuda(4);
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  for (const RankPlan& rank : plan->ranks)
    EXPECT_EQ(device_of(*plan, rank.rank, "w"), fmt::format("cuda:{}", rank.rank));
  EXPECT_FALSE(layout::parse_device("cuda"));
}

// axolotl#3977: trainable LoRA matrices stayed on meta.
TEST(PlanMuseum, Museum42_R2_R65_AdaptersOnMetaGetAValueOrAnError) {
  World world{{{"q.weight", {2, 2}}}, {param("q.weight", {2, 2}), adapter(trained(param("q.lora_A", {1, 2})))}};
  EXPECT_EQ(verdict(world), "R13 q.lora_A");
  world.tensors.back() = init(world.tensors.back(), normal(1));
  EXPECT_EQ(source_of(world, "q.lora_A"), "random R12");
}

// GPTQModel#2875: the scales of an FP8 weight lay in another shard; the last block was ragged.
TEST(PlanMuseum, Museum43_R48_ScalesComeFromWhicheverShardHasThem) {
  World world{{{"w", {200, 128}, DType::kF8E4M3, 1}, {"w.scale", {2, 1}, DType::kF32, 0}},
              {param("w", {200, 128}, DType::kF8E4M3), param("w.scale", {2, 1})}};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(held(*plan, 0, "w.scale"), of("w.scale", {0, 1}));
  EXPECT_EQ(plan->files.size(), 2U);
  world.policy.dtype = DType::kBF16;
  EXPECT_EQ(verdict(world), "R23 w") << "dequantization is refused by name";
}

// transformers#25686: the process group was not up yet, and all ranks loaded nothing.
TEST(PlanMuseum, Museum44_R63_TheLayoutIsAnInputAndTheEnvironmentIsNot) {
  World world{{{"w", {4}}}, {param("w", {4})}};
  world.mesh({{"dp", 2}}).place("w", {shard(0, 0)});
  const auto before = world.plan();
  ASSERT_TRUE(before) << verdict(before);
  for (const char* name : {"ACCELERATE_USE_FSDP", "FSDP_CPU_RAM_EFFICIENT_LOADING", "RANK", "LOCAL_RANK", "WORLD_SIZE"})
    setenv(name, "1", 1);
  const auto after = world.plan();
  for (const char* name : {"ACCELERATE_USE_FSDP", "FSDP_CPU_RAM_EFFICIENT_LOADING", "RANK", "LOCAL_RANK", "WORLD_SIZE"})
    unsetenv(name);
  ASSERT_TRUE(after) << verdict(after);
  EXPECT_EQ(everything(*after), everything(*before));
}

}  // namespace
}  // namespace lading::planner
