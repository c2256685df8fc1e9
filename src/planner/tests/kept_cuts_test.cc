// Quantized payloads that a module computes with: cuts that pass through a block are refused, and the nearest that do
// not are named (R48).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "planner/tests/packed_worlds_for_tests.h"
#include "support/planner_support.h"

namespace lading::planner {
namespace {

using namespace world;  // NOLINT(google-build-using-namespace): the tests' own words
using mapping::Expression;
using ::testing::HasSubstr;
using ::testing::Not;

// A weight in blocks of 128 x 128, and a module that has both.
World kept(std::uint64_t rows, std::uint64_t cols) {
  const Shape grid{(rows + 127) / 128, (cols + 127) / 128};
  World world{{{"w", {rows, cols}, DType::kF8E4M3}, {"w_scale_inv", grid}},
              {param("w", {rows, cols}, DType::kF8E4M3), param("w_scale_inv", grid)}};
  world.quantization = checkpoint::Quantization{"fp8", "", {128, 128}};
  return world;
}

World on_ranks(World world, std::uint64_t ranks, std::size_t dim = 0) {
  world.mesh({{"tp", ranks}});
  for (const char* name : {"w", "w_scale_inv"}) world.place(name, {shard(0, dim)});
  return world;
}

std::string text_of(const World& world) {
  const auto plan = world.plan();
  return plan ? "accepted" : all_text(plan.error());
}

TEST(KeptCuts, R48_PartsOfWholeBlocksAreLoaded) {
  EXPECT_EQ(text_of(on_ranks(kept(384, 256), 3)), "accepted");
  EXPECT_EQ(text_of(on_ranks(kept(384, 256), 1)), "accepted");
  EXPECT_EQ(text_of(on_ranks(kept(384, 256), 2, 1)), "accepted");
  EXPECT_EQ(text_of(on_ranks(kept(200, 256), 1, 1)), "accepted");
}

TEST(KeptCuts, R48_ACutThroughABlockIsRefusedWithTheNearestThatIsNot) {
  const std::string text = text_of(on_ranks(kept(384, 256), 2));
  EXPECT_THAT(text, HasSubstr("R48"));
  EXPECT_THAT(text, HasSubstr("192 of dim 0, on tp=2"));
  EXPECT_THAT(text, HasSubstr("over 1 or 3 ranks"));
  EXPECT_THAT(text, Not(HasSubstr("the model is not"))) << "which is another mistake";
  EXPECT_THAT(text_of(on_ranks(kept(1792, 128), 4)), HasSubstr("over 2 or 7 ranks")) << "448 rows; 896 and 256 do";
  EXPECT_THAT(text_of(on_ranks(kept(128, 192), 2, 1)), HasSubstr("96 of dim 1"));
  EXPECT_THAT(text_of(on_ranks(kept(128, 128), 2)), HasSubstr("over 1 rank,"));
}

// A scale for the tensor, or for each row, that every rank has.
TEST(KeptCuts, R48_WhereAllRanksHaveTheOneScaleOfADimItMayBeCutAnywhere) {
  const auto scaled = [](Shape scales, std::size_t dim, std::vector<layout::Cut> scale_cuts) {
    World world{{{"w", {384, 256}, DType::kF8E4M3}, {"w_scale", scales}},
                {param("w", {384, 256}, DType::kF8E4M3), param("w_scale", scales)}};
    world.quantization = checkpoint::Quantization{"fp8", ""};
    world.mesh({{"tp", 2}}).place("w", {shard(0, dim)}).place("w_scale", std::move(scale_cuts));
    return text_of(world);
  };
  EXPECT_EQ(scaled({}, 0, {}), "accepted");
  EXPECT_EQ(scaled({1}, 1, {}), "accepted");
  EXPECT_EQ(scaled({384, 1}, 1, {}), "accepted");
  EXPECT_EQ(scaled({384, 1}, 0, {shard(0, 0)}), "accepted");
  EXPECT_THAT(scaled({1, 1}, 0, {shard(0, 0)}), HasSubstr("192 of dim 0")) << "the second rank has no scale";
  EXPECT_THAT(scaled({384, 1}, 1, {shard(0, 0)}), HasSubstr("128 of dim 1")) << "half of the scales on each rank";
}

TEST(KeptCuts, R48_BlocksThatNoConfigSaysAreThoseThatScalesDivideEvenly) {
  const auto without_config = [](World world) {
    world.quantization.reset();
    return text_of(world);
  };
  EXPECT_EQ(without_config(on_ranks(kept(384, 256), 3)), "accepted");
  EXPECT_EQ(without_config(on_ranks(kept(384, 256), 2, 1)), "accepted");
  EXPECT_THAT(without_config(on_ranks(kept(384, 256), 2)), HasSubstr("192 of dim 0, on tp=2"));
  World unknown = on_ranks(kept(384, 256), 2);
  for (auto& one : unknown.keys) one.dtype = one.name == "w" ? DType::kI8 : one.dtype;
  for (auto& one : unknown.tensors) one.dtype = one.name == "w" ? DType::kI8 : one.dtype;
  EXPECT_THAT(text_of(unknown), HasSubstr("192 of dim 0")) << "a scheme that lading does not know";
}

// Of a method that lading does not know, codes and scales still share their dims.
TEST(KeptCuts, R48_PackedCodesThatNoConfigSays) {
  World world = gptq_world();
  world.tensors.clear();
  for (const Key& one : world.keys) world.tensors.push_back(param(one.name, one.shape, one.dtype));
  world.quantization.reset();
  const std::uint64_t groups = key(world, "x.scales").shape[0];
  world.mesh({{"tp", groups + 1}}).place("x.qweight", {shard(0, 0)});
  EXPECT_THAT(text_of(world), HasSubstr("R48"));
}

TEST(KeptCuts, R48_WhatIsGatheredBeforeItIsUsedMayBeCutAnywhere) {
  World world = on_ranks(kept(384, 256), 2);
  for (layout::PlacementRule& rule : world.layout.rules) rule.placement.slots.front().cuts.front().gathered = true;
  EXPECT_EQ(text_of(world), "accepted") << "a strategy's FSDP2";
  World unit = on_ranks(kept(384, 256), 2);
  unit.layout.rules.front().placement.fsdp_group = "layer";
  EXPECT_EQ(text_of(unit), "accepted") << "a unit's";
  World zero = kept(384, 256);
  zero.mesh({{"dp", 5}}).place("*", {flat({0})});
  EXPECT_EQ(text_of(zero), "accepted");
  World both = kept(384, 256);
  both.mesh({{"dp", 2}, {"tp", 2}}).place("w", {shard(1, 0), shard(0, 0)});
  both.layout.rules.front().placement.fsdp_group = "layer";
  EXPECT_THAT(text_of(both), HasSubstr("192 of dim 0, on tp=2")) << "tensor parallelism computes with its part";
}

TEST(KeptCuts, R48_PartsOfAStackAreLookedAtOneByOne) {
  World world = kept(384, 256);
  world.keys.push_back({"v", {384, 256}, DType::kF8E4M3});
  world.keys.push_back({"v_scale_inv", {3, 2}});
  const auto concat = [&](const std::string& end) {
    return Expression::concat(0, {Expression::source("w" + end), Expression::source("v" + end)});
  };
  world.build("both", concat("")).build("both_scale_inv", concat("_scale_inv"));
  world.tensors = {param("both", {768, 256}, DType::kF8E4M3), param("both_scale_inv", {6, 2})};
  const auto on = [&](std::uint64_t ranks) {
    World cut = world;
    cut.mesh({{"tp", ranks}}).place("*", {shard(0, 0)});
    return text_of(cut);
  };
  EXPECT_EQ(on(2), "accepted");
  EXPECT_EQ(on(3), "accepted");
  EXPECT_THAT(on(4), HasSubstr("192 of dim 0"));
  EXPECT_THAT(on(4), HasSubstr("over 3 or 6 ranks"));
  World strided_cut = world;
  strided_cut.mesh({{"tp", 2}}).place("*", {strided(0, 0, 2)});
  EXPECT_THAT(text_of(strided_cut), HasSubstr("192 of dim 0"));
}

// Of GPTQ, qweight [in / 8, out] has groups of inputs, and an element of qzeros has 8 outputs.
TEST(KeptCuts, R48_PackedCodesAndTheirZeroPoints) {
  World world = gptq_world();
  world.tensors.clear();
  for (const Key& one : world.keys) world.tensors.push_back(param(one.name, one.shape, one.dtype));
  const auto on = [&](std::uint64_t ranks, std::size_t dim) {
    World cut = world;
    cut.mesh({{"tp", ranks}}).place("x.qweight", {shard(0, dim)});
    return text_of(cut);
  };
  const Shape qweight = key(world, "x.qweight").shape;
  const std::uint64_t groups = key(world, "x.scales").shape[0];
  EXPECT_EQ(on(groups, 0), "accepted");
  EXPECT_THAT(on(groups + 1, 0), HasSubstr("R48"));
  EXPECT_EQ(on(qweight[1] / 8, 1), "accepted");
  EXPECT_THAT(on(qweight[1] / 4, 1), HasSubstr("R48")) << "half of an element of qzeros";
}

}  // namespace
}  // namespace lading::planner
