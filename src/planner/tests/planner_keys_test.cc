// Both sides are accounted for: every key of the model and every key of the checkpoint.
#include <gtest/gtest.h>

#include "support/planner_support.h"

namespace lading::planner {
namespace {

using namespace world;  // NOLINT(google-build-using-namespace): the tests' own words

World two() { return {{{"a", {4}}, {"b", {2, 3}}}, {param("a", {4}), buffer("b", {2, 3})}}; }

TEST(PlannerKeys, R38_EveryKeyIsReadIgnoredOrUnexpected) {
  World world = two();
  world.keys.push_back({"old.table", {2}});
  world.keys.push_back({"step", {}});
  world.mapping.rules = {mapping::Rule::ignore("old-tables", R"(old\..*)")};
  world.policy.unexpected = policy::Strictness::kReport;
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  std::vector<std::string> sources;
  for (const Source& source : plan->sources) sources.push_back(source.key);
  EXPECT_EQ(sources, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(plan->ignored_keys, (std::vector<std::pair<std::string, std::string>>{{"old.table", "old-tables"}}));
  EXPECT_EQ(plan->unexpected_keys, std::vector<std::string>{"step"});
}

TEST(PlannerKeys, R38_AnExtraKeyIsSeenUnderZero3) {
  World world = two();
  world.keys.push_back({"extra", {7}});
  world.mesh({{"dp", 2}}).place("a", {flat({0})});
  EXPECT_EQ(verdict(world), "R39 extra");
}

TEST(PlannerKeys, R39_UnexpectedKeysByStrictness) {
  World world = two();
  world.keys.push_back({"extra", {7}});
  EXPECT_EQ(verdict(world), "R39 extra");
  EXPECT_EQ(world.plan().error().front().file, "model-0.safetensors");

  world.policy.unexpected = policy::Strictness::kReport;
  auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  ASSERT_EQ(plan->warnings.size(), 1U);
  EXPECT_EQ(plan->warnings.front().tensor, "extra");

  world.policy.unexpected = policy::Strictness::kStrict;
  world.policy.allow_unexpected = {"ex*"};
  plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(plan->unexpected_keys, std::vector<std::string>{"extra"});
  EXPECT_TRUE(plan->warnings.empty()) << "it was said to be all right";
}

TEST(PlannerKeys, R39_AllProblemsAreToldAtOnce) {
  World world = two();
  world.keys = {{"a", {5}}, {"c", {2}}};
  EXPECT_EQ(verdict(world), "R41 a; R39 b; R39 c");
}

TEST(PlannerKeys, R39_ZeroOverlapIsAnErrorWhateverIsAllowed) {
  World world = two();
  world.keys = {{"model.a", {4}}, {"model.b", {2, 3}}};
  world.tensors = {init(param("a", {4}), fill(0)), init(buffer("b", {2, 3}), fill(0))};
  world.policy.allow_missing = {"*"};
  world.policy.allow_unexpected = {"*"};
  world.policy.unexpected = policy::Strictness::kReport;
  const auto plan = world.plan();
  ASSERT_EQ(verdict(plan), "R39");
  EXPECT_NE(plan.error().front().expected.find("\"a\""), std::string::npos) << plan.error().front().expected;
  EXPECT_NE(plan.error().front().found.find("\"model.a\""), std::string::npos) << plan.error().front().found;
}

TEST(PlannerKeys, R39_TheRemedyForAMissingKeyIsTold) {
  World world = two();
  world.keys = {{"a", {4}}};
  const auto plan = world.plan();
  ASSERT_EQ(verdict(plan), "R39 b");
  EXPECT_NE(plan.error().front().remedy.find("allow_missing"), std::string::npos);
  EXPECT_NE(plan.error().front().message.find("buffer"), std::string::npos);
}

TEST(PlannerKeys, R40_TheVerdictDoesNotDependOnWhatIsInMemory) {
  for (const auto& make : {+[](Tensor t) { return t; }, +[](Tensor t) { return real(std::move(t)); },
                           +[](Tensor t) { return allocated(std::move(t)); }}) {
    World world = two();
    world.keys = {{"a", {4}}};
    world.tensors = {make(param("a", {4})), make(buffer("b", {2, 3}))};
    EXPECT_EQ(verdict(world), "R39 b");
  }
}

TEST(PlannerKeys, R41_OneRowTooManyIsOneRefusalForEveryRank) {
  World world{{{"embed", {32001, 8}}}, {param("embed", {32002, 8})}};
  world.mesh({{"dp", 8}}).place("embed", {shard(0, 0)});
  const std::string all = all_text(world.plan().error());
  EXPECT_EQ(verdict(world), "R41 embed");
  EXPECT_NE(all.find("[32002, 8]"), std::string::npos) << all;
  EXPECT_NE(all.find("[32001, 8]"), std::string::npos) << all;
  for (std::uint64_t rank = 0; rank < 8; ++rank) {
    const auto plan = world.plan({rank});
    ASSERT_FALSE(plan) << rank;
    EXPECT_EQ(all_text(plan.error()), all) << rank;
    EXPECT_FALSE(plan.error().front().rank.has_value());
  }
}

TEST(PlannerKeys, R42_NothingIsBroadcast) {
  for (const auto& [file, model] :
       {std::pair<Shape, Shape>{{1}, {4}}, {{}, {1}}, {{1}, {}}, {{4}, {4, 1}}, {{1, 4}, {4}}, {{2, 3}, {3, 2}}}) {
    World world = two();
    world.keys.push_back({"c", file});
    world.tensors.push_back(buffer("c", model));
    EXPECT_EQ(verdict(world), "R41 c") << file.text() << " into " << model.text();
  }
}

TEST(PlannerKeys, R43_TwoSourcesForOneTensor) {
  World world = two();
  world.keys.push_back({"model.a", {4}});
  world.mapping.rules = {mapping::Rule::rename_pattern("strip", R"(model\.(.*))", R"(\1)")};
  EXPECT_EQ(verdict(world), "R43 a");
}

TEST(PlannerKeys, R43_AUsersRuleThatMatchesNothingAndALibrarysThatMay) {
  World world = two();
  world.mapping.rules = {mapping::Rule::rename("mine", "gamma", "a")};
  EXPECT_EQ(verdict(world), "R43");
  world.mapping.rules = {mapping::Rule::rename("legacy", "gamma", "a").make_optional()};
  EXPECT_EQ(verdict(world), "accepted");
  world.mapping.rules.clear();
  world.mesh({{"dp", 2}}).place("layers.*", {shard(0, 0)});
  EXPECT_EQ(verdict(world), "R43") << "a layout rule for names that the model does not have";
}

TEST(PlannerKeys, R43_AllowingWhatIsNotThereIsWorthAWarning) {
  World world = two();
  world.policy.allow_missing = {"c"};
  world.policy.allow_mismatch = {"d*"};
  world.policy.allow_unexpected = {"e"};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(plan->warnings.size(), 3U) << all_text(plan->warnings);
}

using Names = std::vector<std::string>;

TEST(PlannerKeys, R39_ThePlanSaysWhatIsMissingAndWhatIsMadeInstead) {
  World world = two();
  world.tensors.push_back(init(param("new", {3}), fill(1)));
  world.tensors.push_back(real(buffer("old", {3})));
  world.tensors.push_back(derived(table("table", {3})));
  world.tensors.push_back(adapter(init(param("lora", {3}), fill(0))));
  world.tensors.push_back(init(param("head", {3}), fill(0)));
  world.policy.allow_missing = {"new", "old"};
  world.policy.not_expected = {NamePattern::exact("head")};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(plan->keys.missing, (Names{"new", "old"})) << "the model expects no key for the others";
  EXPECT_EQ(plan->keys.initialized, (Names{"head", "lora", "new"}));
  EXPECT_EQ(plan->keys.mismatched, Names{});
  world.policy.not_expected.clear();
  EXPECT_EQ(verdict(world), "R39 head");
}

TEST(PlannerKeys, R14_WhatTheUserGivesIsNotMissing) {
  World world = two();
  world.tensors.push_back(real(param("kept", {3})));
  world.tensors.push_back(param("given", {3}));
  world.tensors.push_back(real(param("put_in", {3})));
  world.tensors.back().assigned = true;
  world.policy.keep = {"kept"};
  world.policy.external = {"given"};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(plan->keys.missing, Names{});
  EXPECT_EQ(plan->keys.initialized, Names{});
  EXPECT_TRUE(plan->find("kept")->kept_by_name);
  EXPECT_FALSE(plan->find("put_in")->kept_by_name) << "replicas of it are compared (R17)";
}

TEST(PlannerKeys, R21_AKeyOfAnotherShapeIsMismatchedAndNotMissing) {
  World world = two();
  world.keys.push_back({"head", {5}});
  world.keys.push_back({"there", {5}});
  world.tensors.push_back(init(param("head", {3}), fill(0)));
  world.tensors.push_back(init(param("tied", {3}), fill(0)));
  world.tensors.push_back(real(param("there", {3})));
  world.ties = {{"head", "tied"}};
  world.policy.allow_mismatch = {"head", "there"};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(plan->keys.mismatched, (Names{"head", "there", "tied"}));
  EXPECT_EQ(plan->keys.missing, Names{});
  EXPECT_EQ(plan->keys.initialized, (Names{"head", "tied"})) << "the other one keeps its value";
}

TEST(PlannerKeys, R45_ADTypeThatIsUnknownIsRefusedWhereItIsNeeded) {
  World world = two();
  world.keys[0].unknown_dtype = "F2";
  const auto plan = world.plan();
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().front().code, Code::kUnknownDType);
  EXPECT_EQ(plan.error().front().tensor, "a");
  world.keys[0].name = "z";
  world.keys.push_back({"a", {4}});
  world.policy.allow_unexpected = {"z"};
  EXPECT_EQ(verdict(world), "accepted") << "nobody reads it";
}

TEST(PlannerKeys, R46_KeysOfNonPersistentBuffersAreIgnoredByName) {
  World world = two();
  world.keys.push_back({"rotary_emb.inv_freq", {2}});
  world.keys.push_back({"layers.0.rotary_emb.inv_freq", {2}});
  world.tensors.push_back(derived(table("rotary_emb.inv_freq", {2})));
  EXPECT_EQ(verdict(world), "R39 layers.0.rotary_emb.inv_freq") << "of that name the model has nothing";
  world.mapping.rules = {mapping::Rule::ignore("legacy-rope", R"(layers\.\d+\.rotary_emb\.inv_freq)")};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(source_of(plan, "rotary_emb.inv_freq"), "host R6") << "a stale table is never loaded";
  EXPECT_EQ(plan->ignored_keys,
            (std::vector<std::pair<std::string, std::string>>{{"layers.0.rotary_emb.inv_freq", "legacy-rope"},
                                                              {"rotary_emb.inv_freq", "non-persistent"}}));
}

TEST(PlannerKeys, R46_ARenameOntoANonPersistentBufferLoadsNothing) {
  World world = two();
  world.keys.push_back({"old.inv_freq", {2}});
  world.tensors.push_back(derived(table("inv_freq", {2})));
  world.mapping.rules = {mapping::Rule::rename("rope", "old.inv_freq", "inv_freq")};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(source_of(plan, "inv_freq"), "host R6");
  EXPECT_EQ(plan->ignored_keys, (std::vector<std::pair<std::string, std::string>>{{"old.inv_freq", "non-persistent"}}));
}

TEST(PlannerKeys, R47_AMissingExpertIsNamed) {
  using mapping::Expression;
  World world{{{"e.0", {2}}, {"e.1", {2}}, {"e.3", {2}}}, {param("experts", {4, 2})}};
  std::vector<Expression> parts;
  for (const char* key : {"e.0", "e.1", "e.2", "e.3"}) parts.push_back(Expression::source(key));
  world.build("experts", Expression::stack(0, parts));
  const auto plan = world.plan();
  ASSERT_EQ(verdict(plan), "R47 experts");
  EXPECT_NE(plan.error().front().message.find("\"e.2\""), std::string::npos) << plan.error().front().message;
}

TEST(PlannerKeys, R62_ARankThatIsNotThereIsRefused) {
  World world = two();
  world.mesh({{"dp", 2}});
  EXPECT_EQ(verdict(world.plan({2})), "no rule");
  EXPECT_EQ(verdict(world.plan({1})), "accepted");
}

// Rows [begin, end) of the key x, which has six.
mapping::Expression rows(std::uint64_t begin, std::uint64_t end) {
  return mapping::Expression::slice(mapping::Expression::source("x"), 0, begin, end);
}

TEST(PlannerKeys, R11_R38_ReadsThatOverlapDoNotHideAHole) {
  World world{{{"x", {6, 4}}}, {param("a", {2, 4}), param("b", {2, 4}), param("c", {2, 4})}};
  world.build("a", rows(0, 2)).build("b", rows(4, 6)).build("c", rows(0, 2));
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  ASSERT_EQ(plan->warnings.size(), 1U);
  EXPECT_EQ(plan->warnings.front().rule, "R11");
  EXPECT_NE(plan->warnings.front().found.find("16"), std::string::npos) << plan->warnings.front().found;
}

TEST(PlannerKeys, R11_PartsThatCoverAKeyTogetherAreNoHole) {
  World world{{{"x", {6, 4}}}, {param("a", {4, 4}), param("b", {4, 4})}};
  world.build("a", rows(0, 4)).build("b", rows(2, 6));
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_TRUE(plan->warnings.empty()) << all_text(plan->warnings);
}

TEST(PlannerKeys, R39_AModelThatNoFileIsForHasNothingInCommonWithOne) {
  World world{{{"x", {4}}}, {derived(table("inv", {4}))}};
  EXPECT_EQ(verdict(world), "R39 x") << "one problem, and not that the names are strange";
  world.policy.allow_unexpected = {"x"};
  EXPECT_EQ(verdict(world), "accepted");
}

}  // namespace
}  // namespace lading::planner
