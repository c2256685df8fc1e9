// Dtypes through the whole planner; the table itself is policy's (dtype_table_test.cc).
#include <gtest/gtest.h>

#include "plan/planner_support.h"

namespace lading::plan {
namespace {

using namespace world;  // NOLINT(google-build-using-namespace): the tests' own words

// "F32/BF16": stored and computed in; or why there is no plan.
std::string dtypes(const World& world, std::string_view name) {
  const auto plan = world.plan();
  if (!plan) return "refused: " + verdict(plan);
  const Statement* s = plan->find(name);
  return fmt::format("{}/{}", lading::name(s->storage), lading::name(s->compute));
}

// A mixed file: a bf16 projection, an fp32 A_log and an integer buffer, all constructed as fp32 but the last.
World mixed() {
  return {{{"proj", {4}, DType::kBF16}, {"A_log", {4}, DType::kF32}, {"steps", {1}, DType::kI64}},
          {trained(param("proj", {4})), trained(param("A_log", {4})), buffer("steps", {1}, DType::kI64)}};
}

TEST(PlannerDtypes, R22_AutoMirrorsTheFile) {
  EXPECT_EQ(dtypes(mixed(), "proj"), "BF16/BF16");
  EXPECT_EQ(dtypes(mixed(), "A_log"), "F32/F32");
  EXPECT_EQ(dtypes(mixed(), "steps"), "I64/I64");
}

TEST(PlannerDtypes, R23_R24_ARequestNeverNarrowsAndCastsOnce) {
  World world = mixed();
  world.policy.dtype = DType::kBF16;
  EXPECT_EQ(dtypes(world, "A_log"), "F32/F32");
  world.policy.dtype = DType::kF32;
  EXPECT_EQ(dtypes(world, "proj"), "F32/F32");
  EXPECT_EQ(dtypes(world, "steps"), "I64/I64");
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  const Transfer& transfer = find(*plan, 0, "proj")->transfers.at(0);
  EXPECT_EQ(plan->sources[transfer.source].dtype, DType::kBF16) << "from the file's bits, and nothing between";
  EXPECT_EQ(find(*plan, 0, "proj")->buffer_bytes, 16U);
  EXPECT_EQ(plan->find("proj")->checkpoint_dtype, DType::kBF16) << "recorded before it was widened";
  world.policy.dtype = DType::kBF16;
  world.policy.cast = policy::Cast::kExact;
  EXPECT_EQ(dtypes(world, "A_log"), "BF16/BF16");
}

TEST(PlannerDtypes, R23_PartsOfUnlikeDtypesArePromotedOrRefused) {
  using mapping::Expression;
  World world{{{"a", {2}, DType::kBF16}, {"b", {2}, DType::kF16}}, {param("w", {4})}};
  world.build("w", Expression::concat(0, {Expression::source("a"), Expression::source("b")}));
  EXPECT_EQ(dtypes(world, "w"), "F32/F32");
  world.keys[1].dtype = DType::kF8E4M3;
  EXPECT_EQ(dtypes(world, "w").rfind("refused: R23 w", 0), 0U) << dtypes(world, "w");
}

TEST(PlannerDtypes, R25_PinsHoldAndUnmatchedOnesAreTold) {
  World world = mixed();
  world.keys[1].dtype = DType::kBF16;
  world.policy.dtype = DType::kBF16;
  world.pins = {{"A_log", model::PinStrength::kFloat16AndBFloat16}, {"norm", model::PinStrength::kFloat16}};
  EXPECT_EQ(dtypes(world, "A_log"), "F32/F32");
  EXPECT_EQ(dtypes(world, "proj"), "BF16/BF16");
  const auto plan = world.plan();
  ASSERT_EQ(plan->warnings.size(), 1U);
  EXPECT_EQ(plan->warnings.front().rule, "R25");
}

TEST(PlannerDtypes, R26_ComputeFollowsPinThenRecordThenPolicy) {
  World world{{{"proj", {4}, DType::kBF16}, {"A_log", {4}, DType::kF32}},
              {trained(param("proj", {4})), trained(param("A_log", {4})), init(param("fresh", {4}), fill(1))}};
  world.policy.dtype = DType::kF32;
  world.policy.compute_dtype = DType::kBF16;
  world.policy.allow_missing = {"fresh"};
  world.pins = {{"A_log", model::PinStrength::kFloat16AndBFloat16}};
  EXPECT_EQ(dtypes(world, "proj"), "F32/BF16");
  EXPECT_EQ(dtypes(world, "A_log"), "F32/F32");
  EXPECT_EQ(dtypes(world, "fresh"), "F32/BF16") << "no record, so the policy's";
}

TEST(PlannerDtypes, R27_AnFsdpUnitOfTwoDtypesIsRefused) {
  World world = mixed();
  world.mesh({{"dp", 2}}).place("proj", {shard(0, 0)}).place("A_log", {shard(0, 0)});
  for (auto& rule : world.layout.rules) rule.placement.fsdp_group = "layer";
  EXPECT_EQ(dtypes(world, "proj").rfind("refused: R27", 0), 0U) << dtypes(world, "proj");
  world.layout.rules[1].placement.fsdp_group = "layer.fp32";
  EXPECT_EQ(dtypes(world, "proj"), "BF16/BF16");
  world.layout.rules[1].placement.fsdp_group = "layer";
  world.tensors[1].requires_grad = false;
  EXPECT_EQ(dtypes(world, "proj"), "BF16/BF16") << "frozen ones go with any unit";
}

TEST(PlannerDtypes, R28_AFrozenTowerIsCastAndATrainableOneIsNot) {
  World world{{{"vision.w", {4}}, {"vision.std_bias", {2}}, {"vision.scale", {2}}, {"text.w", {4}}, {"text.b", {2}}},
              {param("vision.w", {4}), buffer("vision.std_bias", {2}), buffer("vision.scale", {2}),
               trained(param("text.w", {4})), buffer("text.b", {2})}};
  world.policy.compute_dtype = DType::kBF16;
  world.pins = {{"vision.scale", model::PinStrength::kFloat16AndBFloat16}};
  EXPECT_EQ(dtypes(world, "vision.std_bias"), "BF16/BF16");
  EXPECT_EQ(dtypes(world, "vision.w"), "BF16/BF16");
  EXPECT_EQ(dtypes(world, "vision.scale"), "F32/F32") << "pinned";
  EXPECT_EQ(dtypes(world, "text.b"), "F32/F32");
  world.mesh({{"dp", 2}}).place("vision.w", {shard(0, 0)});
  EXPECT_EQ(dtypes(world, "vision.w").substr(0, 4), "F32/") << "a DTensor is never cast in place";
}

TEST(PlannerDtypes, R29_WhatIsDerivedHasItsDeclaredDtype) {
  World world = mixed();
  world.tensors.push_back(derived(table("inv_freq", {2})));
  world.policy.dtype = DType::kBF16;
  world.policy.cast = policy::Cast::kExact;
  EXPECT_EQ(dtypes(world, "inv_freq"), "F32/F32");
  // zero.Init made it bf16; the derivation says what it should have been.
  world.tensors.back() = real(derived(table("inv_freq", {2}, DType::kBF16)));
  world.tensors.back().declared_dtype = DType::kF32;
  EXPECT_EQ(dtypes(world, "inv_freq"), "F32/F32");
  EXPECT_EQ(source_of(world, "inv_freq"), "host R6");
}

TEST(PlannerDtypes, R32_SubtreesAreAskedForByPrefix) {
  World world{{{"text.w", {2}, DType::kBF16}, {"vision.w", {2}, DType::kBF16}},
              {param("text.w", {2}), param("vision.w", {2})}};
  world.policy.dtype = DType::kF32;
  EXPECT_EQ(dtypes(world, "text.w"), "F32/F32");
  EXPECT_EQ(dtypes(world, "vision.w"), "F32/F32");
  world.policy.subtree_dtypes = {{"vision", DType::kBF16}};
  EXPECT_EQ(dtypes(world, "vision.w"), "BF16/BF16");
}

TEST(PlannerDtypes, R37_MemoryThatIsThereIsWrittenInPlaceOrRefused) {
  World world{{{"w", {15}, DType::kF32}}, {allocated(param("w", {15}, DType::kBF16), "cuda:0")}};
  world.mesh({{"dp", 2}}).place("w", {flat({0})});
  EXPECT_EQ(dtypes(world, "w"), "refused: R22 w") << "narrower than the contract asks";
  world.policy.cast = policy::Cast::kDestination;
  EXPECT_EQ(dtypes(world, "w"), "BF16/BF16");
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(find(*plan, 1, "w")->buffer_bytes, 16U) << "8 elements of the memory's own dtype, padding included";
  world.keys[0].dtype = DType::kBF16;
  world.tensors[0].dtype = DType::kF32;
  world.policy.cast = policy::Cast::kPromote;
  EXPECT_EQ(dtypes(world, "w"), "F32/F32") << "wider is no loss, and is not replaced";
}

TEST(PlannerDtypes, R7_R14_AKeptValueHasTheDtypeThatItHas) {
  World world{{{"w", {2}}}, {param("w", {2}), real(table("t", {2}, DType::kBF16))}};
  world.policy.dtype = DType::kF32;
  EXPECT_EQ(dtypes(world, "t"), "BF16/BF16");
  world.tensors.back() = real(param("t", {2}, DType::kBF16));
  world.keys.push_back({"t", {2}});
  world.policy.keep = {"t"};
  EXPECT_EQ(dtypes(world, "t"), "BF16/BF16") << "nobody writes to it, so nothing is too narrow";
}

}  // namespace
}  // namespace lading::plan
