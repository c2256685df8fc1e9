// What these tests found in the planner, each in its smallest form. They failed when they were written.
#include <gtest/gtest.h>

#include <cstdlib>

#include "support/planner_support.h"

namespace lading::planner {
namespace {

using namespace world;  // NOLINT(google-build-using-namespace): the tests' own words

// A layout rule that names only the second member of a tie class "matches no tensor": no pipeline can be laid out.
TEST(PlannerBugs, R43_R51_ALayoutRuleMayNameOnlyAnAlias) {
  World world{{{"embed", {4}}}, {param("embed", {4}), param("head", {4})}, {{"embed", "head"}}};
  world.mesh({{"pp", 2}}).place("embed", {owner(0, {0})}).place("head", {owner(0, {1})});
  EXPECT_EQ(verdict(world), "accepted");
}

// The cuts of an alias are not checked; untied, it is planned by them, and region_of's own check aborts.
TEST(PlannerBugs, R50_R53_AnAliasesCutsAreCheckedToo) {
  World world{{{"a", {4, 4}}, {"b", {4, 4}}, {"c", {1, 1, 1, 4}}},
              {param("a", {4, 4}), param("b", {4, 4}), param("c", {1, 1, 1, 4})},
              {{"a", "b"}}};
  world.policy.ties = policy::Ties::kUntie;
  world.mesh({{"tp", 2}}).place("a", {shard(0, 0)}).place("*", {shard(0, 3)});
  // In a process of its own: today it aborts.
  EXPECT_EXIT(std::_Exit(verdict(world) == "R53 b" ? 0 : 1), testing::ExitedWithCode(0), "");
}

TEST(PlannerBugs, R6_R39_ADerivationDoesNotHideAMissingPersistentKey) {
  EXPECT_EQ(verdict(with(derived(param("t", {2})))), "R39 t");
  EXPECT_EQ(verdict(with(derived(buffer("t", {2})))), "R39 t");
}

TEST(PlannerBugs, R39_AllowingAMismatchDoesNotAllowMissing) {
  World world = with(init(param("t", {2}), fill(0)));
  world.policy.allow_mismatch = {"t"};
  EXPECT_EQ(verdict(world), "R39 t");
}

// The flag of one tensor's mismatch lives on and is told of the next one.
TEST(PlannerBugs, R12_R21_AMismatchIsToldOfItsOwnTensorOnly) {
  World world = with(init(param("a", {3}), fill(0)), {{"a", {5}}});
  world.tensors.push_back(init(param("b", {2}), fill(0)));
  world.policy.allow_mismatch = {"a"};
  world.policy.allow_missing = {"b"};
  EXPECT_EQ(source_of(world, "a"), "fill R21");
  EXPECT_EQ(source_of(world, "b"), "fill R12");
}

TEST(PlannerBugs, R21_AnAllowedMismatchIsReported) {
  World world = with(init(param("head", {3}), fill(0)), {{"head", {5}}});
  world.policy.allow_mismatch = {"head"};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(plan->find("head")->reason.find("no file has it"), std::string::npos) << "one has, in another shape";
  EXPECT_NE(all_text(plan->warnings).find("head"), std::string::npos) << "nothing tells that the key was left alone";
}

// The first member's mismatch ends the search, though another member's key fits.
TEST(PlannerBugs, R21_AnAllowedMismatchOfOneTiedKeyLeavesTheOtherOne) {
  World world{{{"w", {2}}, {"embed", {5}}, {"head", {3}}},
              {param("w", {2}), init(param("embed", {3}), fill(0)), param("head", {3})},
              {{"embed", "head"}}};
  world.policy.allow_mismatch = {"embed"};
  EXPECT_EQ(source_of(world, "embed"), "file R50") << "the class has a key of the right shape";
}

TEST(PlannerBugs, R38_KeysThatTheUsersWordHidesAreClassified) {
  World world = with(real(param("kept", {2})), {{"kept", {2}}, {"given", {2}}});
  world.tensors.push_back(param("given", {2}));
  world.policy.keep = {"kept"};
  world.policy.external = {"given"};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  std::vector<std::string> told = plan->unexpected_keys;
  for (const auto& [key, rule] : plan->ignored_keys) told.push_back(key);
  for (const Source& source : plan->sources) told.push_back(source.key);
  std::sort(told.begin(), told.end());
  EXPECT_EQ(told, (std::vector<std::string>{"given", "kept", "w"}));
}

TEST(PlannerBugs, R14_KeepAndExternalForOneTensorContradictEachOther) {
  World world = with(real(param("t", {2})));
  world.policy.keep = {"t"};
  world.policy.external = {"t"};
  EXPECT_NE(verdict(world), "accepted") << "two sources of equal rank are an error";
}

TEST(PlannerBugs, R43_KeepMustMatchATensorNotAKey) {
  World world = with(param("t", {2}), {{"t", {2}}, {"ghost", {2}}});
  world.policy.allow_unexpected = {"ghost"};
  world.policy.keep = {"ghost"};
  EXPECT_EQ(verdict(world), "R43");
}

// A buffer that has a derivation and is kept by name is stated in the derivation's dtype, which it has not.
TEST(PlannerBugs, R14_R29_KeepBeatsADeclaredDtype) {
  World world = with(real(derived(table("rope", {2}, DType::kBF16))));
  world.tensors.back().declared_dtype = DType::kF32;
  world.policy.keep = {"rope"};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(source_of(plan, "rope"), "kept R14");
  EXPECT_EQ(plan->find("rope")->storage, DType::kBF16);
}

// Only per_node divides the budget, and a list of devices leaves it at 1: eight listed GPUs stage 8 x 256 MiB.
TEST(PlannerBugs, R64_ListedDevicesOfANodeShareItsBudget) {
  World world{{{"w", {4}}}, {param("w", {4})}};
  world.mesh({{"dp", 2}});
  world.layout.devices.list = {{layout::DeviceType::kCuda, 0}, {layout::DeviceType::kCuda, 1}};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_LE(rank_of(*plan, 0)->staging_bytes + rank_of(*plan, 1)->staging_bytes, world.policy.budget_bytes);
}

// "Only before sharding": memory that is there is one storage, and stays one.
TEST(PlannerBugs, R50_MemoryThatIsThereCannotBeUntied) {
  World world{{{"embed", {4}}, {"head", {4}}},
              {allocated(param("embed", {4})), allocated(param("head", {4}))},
              {{"embed", "head"}}};
  world.policy.ties = policy::Ties::kUntie;
  world.mesh({{"dp", 2}}).place("*", {flat({0})});
  EXPECT_EQ(verdict(world), "R50 embed");
}

// Pipeline stages never meet, so the planner lets them cut a tie differently, and the checker refuses its plan.
TEST(PlannerBugs, R51_R52_PlannerAndCheckerAgreeOnStagesThatCutATieDifferently) {
  World world{{{"embed", {4, 2}}}, {param("embed", {4, 2}), param("head", {4, 2})}, {{"embed", "head"}}};
  world.mesh({{"pp", 2}, {"tp", 2}});
  world.place("embed", {owner(0, {0}), shard(1, 0)}).place("head", {owner(0, {1}), shard(1, 1)});
  const std::string told = verdict(world);
  EXPECT_TRUE(told == "accepted" || told == "R52 embed") << told;
}

TEST(PlannerBugs, R1_ARankAskedTwiceIsPlannedOnceOrRefusedByThePlanner) {
  World world = with(param("t", {2}), {{"t", {2}}});
  const std::string told = verdict(world.plan({0, 0}));
  EXPECT_EQ(told.find("checker"), std::string::npos) << told;
}

// A shared buffer of FSDP1's has one place for a tied tensor, whichever of its names a rule names.
TEST(PlannerBugs, R49_ATiedTensorInASharedBufferMayHaveARuleForEachName) {
  World world{{{"a", {4}}}, {param("a", {4}), param("b", {4})}, {{"a", "b"}}};
  layout::Cut unit;
  unit.kind = layout::CutKind::kFlatGroup;
  unit.axes = {0};
  unit.flat_parameter = "u";
  unit.group_elems = 4;
  world.mesh({{"dp", 2}}).place("a", {unit}).place("b", {unit});
  EXPECT_EQ(verdict(world), "accepted");
}

TEST(PlannerBugs, R27_ASharedBufferHasOneDtype) {
  World world{{{"a", {4}}, {"b", {4}, DType::kBF16}}, {param("a", {4}), param("b", {4})}};
  layout::Cut first;
  first.kind = layout::CutKind::kFlatGroup;
  first.axes = {0};
  first.flat_parameter = "u";
  first.group_elems = 8;
  layout::Cut second = first;
  second.group_offset_elems = 4;
  world.mesh({{"dp", 2}}).place("a", {first}).place("b", {second});
  EXPECT_EQ(verdict(world), "R27 b");
}

TEST(PlannerBugs, R36_BuffersAreNotOffloaded) {
  World world{{{"w", {4}}, {"scale", {4}}}, {param("w", {4}), buffer("scale", {4})}};
  world.mesh({{"dp", 2}}).place("*", {shard(0, 0)});
  world.layout.devices = {{}, layout::DeviceType::kCuda, 2};
  world.layout.rules[0].placement.device = layout::DeviceRule::kCpu;
  EXPECT_EQ(verdict(world), "R36 scale");
}

TEST(PlannerBugs, R11_AKeyThatIsReadInPartIsReported) {
  World world{{{"w", {8}}}, {param("half", {4})}};
  const auto expression = mapping::Expression::slice(mapping::Expression::source("w"), 0, 0, 4);
  world.mapping.rules.push_back(mapping::Rule::build("half", "half", mapping::ExpressionTemplate::literal(expression)));
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_NE(all_text(plan->warnings).find("4 elements that are read"), std::string::npos) << all_text(plan->warnings);
}

TEST(PlannerBugs, R43_ADtypeForASubtreeThatIsNotThere) {
  World world = with(param("t", {2}), {{"t", {2}}});
  world.policy.subtree_dtypes = {{"modle", DType::kF32}};
  EXPECT_EQ(verdict(world), "R43");
}

TEST(PlannerBugs, R23_EveryPartMustBeCastable) {
  World world{{{"a", {2}, DType::kI32}, {"b", {2}}}, {param("t", {4})}};
  std::vector<mapping::Expression> parts = {mapping::Expression::source("a"), mapping::Expression::source("b")};
  const auto expression = mapping::Expression::concat(0, std::move(parts));
  world.mapping.rules.push_back(mapping::Rule::build("t", "t", mapping::ExpressionTemplate::literal(expression)));
  EXPECT_EQ(verdict(world), "R23 t");
}

}  // namespace
}  // namespace lading::planner
