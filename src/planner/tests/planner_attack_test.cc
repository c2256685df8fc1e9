// Inputs that broke the planner, or set it against the checker: each in its smallest form. They failed, aborted or
// did not end when they were written.
#include <gtest/gtest.h>

#include <set>

#include "support/planner_support.h"

namespace lading::planner {
namespace {

using namespace world;  // NOLINT(google-build-using-namespace): the tests' own words
using mapping::Expression;

constexpr std::uint64_t kHuge = std::uint64_t{1} << 59;

World tie(Shape shape) {
  return {{{"a", shape}}, {trained(param("a", shape)), trained(param("b", shape))}, {{"a", "b"}}};
}

// The verdict of each rank's own plan, which must be one.
std::string verdict_of_all(const World& world) {
  std::set<std::string> verdicts;
  for (const std::uint64_t rank : world.all_ranks()) verdicts.insert(verdict(world.plan({rank})));
  std::string text;
  for (const std::string& told : verdicts) text += (text.empty() ? "" : " | ") + told;
  return text;
}

TEST(PlannerAttack, R23_TheCheckerKnowsEveryCastThatDtypesPromise) {
  World float8 = one({4}, DType::kF8E4M3);
  float8.policy.dtype = DType::kBF16;
  float8.policy.cast = policy::Cast::kExact;
  EXPECT_EQ(verdict(float8), "accepted");
  World integer{{{"w", {4}, DType::kI32}}, {allocated(buffer("w", {4}, DType::kI64))}};
  integer.policy.cast = policy::Cast::kDestination;
  EXPECT_EQ(verdict(integer), "accepted");
}

TEST(PlannerAttack, R48_AMappingThatCutsInsideAByteIsRefused) {
  World slice{{{"x", {4}, DType::kF4}}, {param("w", {2}, DType::kF4)}};
  slice.build("w", Expression::slice(Expression::source("x"), 0, 1, 3));
  const auto plan = slice.plan();
  EXPECT_EQ(verdict(plan), "R48 w");
  ASSERT_FALSE(plan);
  EXPECT_NE(plan.error().front().message.find("mapping"), std::string::npos) << plan.error().front().message;
  World turned{{{"x", {4, 4}, DType::kF4}}, {param("w", {4, 4}, DType::kF4)}};
  turned.build("w", Expression::permute(Expression::source("x"), {1, 0}));
  EXPECT_EQ(verdict(turned), "R48 w");
  turned.mesh({{"d", 2}}).place("w", {shard(0, 0)});
  EXPECT_EQ(verdict(turned), "R48 w");
}

TEST(PlannerAttack, R48_R50_AComparisonThatCutsInsideAByteIsRefused) {
  World world{{{"a", {4, 4}, DType::kF4}, {"x", {4, 4}, DType::kF4}},
              {param("a", {4, 4}, DType::kF4), param("b", {4, 4}, DType::kF4)},
              {{"a", "b"}}};
  world.build("b", Expression::permute(Expression::source("x"), {1, 0}));
  EXPECT_NE(verdict(world).find("R48 a"), std::string::npos) << verdict(world);
}

TEST(PlannerAttack, R48_PackedElementsOfAHugeMeshAreLookedAtWhereTheyAre) {
  World owned = one({4096}, DType::kF4);
  owned.mesh({{"d", std::uint64_t{1} << 32}}).place("w", {owner(0, {0})});
  EXPECT_EQ(verdict(owned.plan({0})), "accepted");
  World cut = one({4096}, DType::kF4);
  cut.mesh({{"d", std::uint64_t{1} << 32}}).place("w", {shard(0, 0)});
  EXPECT_EQ(verdict(cut.plan({0})), "R48 w");
}

TEST(PlannerAttack, R11_TiedMembersOfASharedBufferHaveTheirPlaceToo) {
  World world = tie({4});
  world.keys.push_back({"c", {4}});
  world.tensors.push_back(param("c", {4}));
  world.mesh({{"pp", 2}, {"d", 2}});
  world.place("a", {owner(0, {0}), flat_parameter(1, "u0", 0, 4)})
      .place("b", {owner(0, {1}), flat_parameter(1, "u1", 0, 4)});
  world.place("c", {owner(0, {1}), flat_parameter(1, "u1", 0, 4)});
  EXPECT_EQ(verdict_of_all(world), "R11 c");
  world.layout.rules[2].placement.slots[0].cuts[1] = flat_parameter(1, "u1", 4, 8);
  EXPECT_EQ(verdict_of_all(world), "R56 c") << "they do not agree on the buffer's size";
  world.layout.rules[1].placement.slots[0].cuts[1] = flat_parameter(1, "u1", 0, 8);
  EXPECT_EQ(verdict_of_all(world), "accepted");
}

TEST(PlannerAttack, R52_R53_AParameterAndItsTiedBufferAreCutEvenlyAlike) {
  World world = tie({4, 4});
  world.tensors[1] = buffer("b", {4, 4});
  world.mesh({{"d", 2}}).place("*", {shard(0, 1)});
  world.layout.rules[0].placement.fsdp_group = "g";
  EXPECT_EQ(verdict(world), "accepted");
}

TEST(PlannerAttack, R64_ABufferThatIsTooLargeIsRefusedForEveryRank) {
  World padded = one({4}, DType::kF64);
  padded.mesh({{"pp", 2}, {"d", 2}}).place("w", {owner(0, {1}), flat({1}, std::uint64_t{1} << 62)});
  EXPECT_EQ(verdict_of_all(padded), "R64 w");
  World grouped = one({4}, DType::kF64);
  grouped.mesh({{"pp", 2}, {"d", 2}}).place("w", {owner(0, {1}), flat_parameter(1, "u", 0, std::uint64_t{1} << 62)});
  EXPECT_EQ(verdict_of_all(grouped), "R64 w");
}

TEST(PlannerAttack, R64_BuffersThatAreTooLargeTogetherAreRefused) {
  World world = one({4});
  for (const char* name : {"a0", "a1", "a2"}) {
    world.tensors.push_back(init(buffer(name, {kHuge}, DType::kF64), fill(0)));
  }
  world.policy.allow_missing = {"a*"};
  EXPECT_EQ(verdict(world), "R64 a1");
}

TEST(PlannerAttack, R64_AGreatUnitIsCountedInBytes) {
  World world = one({4});
  world.tensors.push_back(init(buffer("a", {kHuge}, DType::kF64), fill(0)));
  world.policy.allow_missing = {"a"};
  world.mesh({{"d", 1}}).place("a", {flat_parameter(0, "u", 0, kHuge)});
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(plan->ranks[0].flat_parameter_gap_bytes, 0U);
}

TEST(PlannerAttack, R66_StagesOfAHugeMeshAreToldApart) {
  World world{{{"b", {4}}}, {derived(table("a", {4}), call({"b"})), param("b", {4})}};
  world.mesh({{"pp", 70000}}).place("a", {owner(0, {0})}).place("b", {owner(0, {1})});
  EXPECT_EQ(verdict(world.plan({0})), "R66 a");
  World apart = tie({4, 4});
  apart.mesh({{"pp", 70000}, {"d", 2}});
  apart.place("a", {owner(0, {0}), shard(1, 0)}).place("b", {owner(0, {1}), shard(1, 1)});
  EXPECT_EQ(verdict(apart.plan({0})), "accepted");
}

TEST(PlannerAttack, R36_OneRankWithAnAcceleratorIsEnough) {
  World world{{{"w", {4}}}, {buffer("w", {4})}};
  world.mesh({{"d", 2}}).place("*", {});
  world.layout.rules[0].placement.device = layout::DeviceRule::kCpu;
  world.layout.devices.list = {{layout::DeviceType::kCpu, 0}, {layout::DeviceType::kCuda, 0}};
  EXPECT_EQ(verdict(world), "R36 w");
  world.layout.devices.list = {{layout::DeviceType::kCuda, 0}, {layout::DeviceType::kCpu, 0}};
  EXPECT_EQ(verdict(world), "R36 w");
  world.layout.rules[0].placement.slots[0].cuts = {owner(0, {1})};
  EXPECT_EQ(verdict(world), "accepted") << "only the rank without one has it";
}

TEST(PlannerAttack, R53_WhatFsdp2CannotHoldIsInNoUnit) {
  World scalar{{{"a", {}}, {"b", {4}}}, {trained(param("a", {})), trained(param("b", {4}))}};
  scalar.mesh({{"d", 2}}).place("*", {});
  scalar.layout.rules[0].placement.fsdp_group = "g";
  EXPECT_EQ(verdict(scalar), "R53 a");
  World flattened{{{"w", {4}}}, {trained(param("w", {4}))}};
  flattened.mesh({{"d", 2}}).place("*", {flat({0})});
  flattened.layout.rules[0].placement.fsdp_group = "g";
  EXPECT_EQ(verdict(flattened), "R53 w");
}

TEST(PlannerAttack, R64_ABudgetThatTheRanksOfANodeExceedIsTold) {
  World world = one({8, 4});
  world.mesh({{"d", 8}}).cuda(8).place("w", {shard(0, 0)});
  world.policy.budget_bytes = 32U << 20;
  const auto small = world.plan();
  ASSERT_TRUE(small) << verdict(small);
  EXPECT_NE(all_text(small->warnings).find("268435456"), std::string::npos) << all_text(small->warnings);
  EXPECT_NE(all_text(small->warnings).find("33554432"), std::string::npos) << all_text(small->warnings);
  world.policy.budget_bytes = 256U << 20;
  const auto enough = world.plan();
  ASSERT_TRUE(enough) << verdict(enough);
  EXPECT_EQ(all_text(enough->warnings), "");
}

TEST(PlannerAttack, R51_R52_StagesThatNeverMeetMayHaveOtherSlots) {
  World world = tie({4});
  world.mesh({{"pp", 2}, {"d", 2}});
  world.place("a", {owner(0, {0}), shard(1, 0)}).place("b", {owner(0, {1}), shard(1, 0)});
  world.layout.rules[0].placement.slots.push_back({"secondary", {owner(0, {0})}});
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(held(*plan, 0, "a", "secondary"), of("a", {0, 1, 2, 3}));
  EXPECT_EQ(held(*plan, 3, "b"), of("a", {2, 3}));
  EXPECT_EQ(find(*plan, 3, "b", "secondary"), nullptr);
  std::swap(world.layout.rules[0].placement, world.layout.rules[1].placement);
  EXPECT_EQ(verdict(world), "accepted") << "the second slot is the alias's";
  world.layout.rules[0].placement.slots[0].cuts[0].owners = {0, 1};
  EXPECT_EQ(verdict(world), "R52 a");
}

TEST(PlannerAttack, R66_AnInputIsThereUnderItsTiedName) {
  World world = tie({4});
  world.tensors.push_back(derived(table("z", {4}), call({"a"})));
  world.mesh({{"pp", 2}, {"d", 2}});
  world.place("a", {owner(0, {0})}).place("b", {owner(0, {1})}).place("z", {owner(0, {1})});
  EXPECT_EQ(verdict(world), "accepted");
}

TEST(PlannerAttack, R52_OneErrorTellsAllPlacementsOfAClass) {
  World world = tie({4, 4});
  for (const char* name : {"c", "d", "e"}) world.tensors.push_back(trained(param(name, {4, 4})));
  world.ties = {{"a", "b", "c", "d", "e"}};
  world.mesh({{"d", 2}}).place("a", {shard(0, 0)}).place("b", {shard(0, 0)}).place("*", {shard(0, 1)});
  const auto plan = world.plan();
  ASSERT_EQ(verdict(plan), "R52 a");
  const std::string& found = plan.error().front().found;
  for (const char* name : {"\"a\", \"b\"", "\"c\", \"d\", \"e\""}) {
    EXPECT_NE(found.find(name), std::string::npos) << found;
  }
}

// Twenty thousand names took half a minute where every two were compared.
TEST(PlannerAttack, R52_AGreatTieClassIsGroupedNotPaired) {
  World world{{{"t00000", {2}}}, {}};
  std::vector<std::string> names;
  for (int i = 0; i < 20000; ++i) {
    names.push_back(fmt::format("t{:05}", i));
    world.tensors.push_back(trained(param(names.back(), {2})));
  }
  world.ties = {names};
  world.mesh({{"d", 2}}).place("t0*", {shard(0, 0)}).place("*", {shard(0, 0)});
  EXPECT_EQ(verdict(world.plan({0})), "accepted");
  world.layout.rules[0].placement.fsdp_group = "one";
  world.layout.rules[1].placement.fsdp_group = "two";
  EXPECT_EQ(verdict(world.plan({0})), "R52 t00000");
}

}  // namespace
}  // namespace lading::planner
