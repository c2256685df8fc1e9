// Problems of all kinds are told at once, and none that only follows from another.
#include <gtest/gtest.h>

#include "support/planner_support.h"

namespace lading::planner {
namespace {

using namespace world;  // NOLINT(google-build-using-namespace): the tests' own words

TEST(PlannerTogether, R39_R43_R53_LayoutMappingKeysAndShapesInOneRefusal) {
  World world{{{"a", {4}}, {"b", {5}}, {"odd", {2}}, {"x", {2}}, {"y", {2}}},
              {param("a", {4}), param("b", {4}), param("gone", {2}), param("two", {2})}};
  world.mesh({{"dp", 2}}).place("a", {shard(0, 3)});
  world.mapping.rules.push_back(mapping::Rule::rename("one", "x", "two"));
  world.mapping.rules.push_back(mapping::Rule::rename("other", "y", "two"));
  EXPECT_EQ(verdict(world), "R53 a; R43 two; R41 b; R39 gone; R39 odd");
}

TEST(PlannerTogether, R43_ARuleThatMatchesNothingExplainsWhatIsMissing) {
  World world{{{"old.a", {4}}, {"b", {5}}}, {param("a", {4}), param("b", {4})}};
  world.mapping.rules.push_back(mapping::Rule::rename_pattern("strip", "older\\.(.*)", "\\1"));
  EXPECT_EQ(verdict(world), "R43; R41 b") << "missing and unexpected names may follow from the rule";
}

TEST(PlannerTogether, R43_ANamedRuleThatMatchesNothingExplainsItsTensorOnly) {
  World world{{{"b", {4}}, {"odd", {4}}}, {param("a", {4}), param("b", {4}), param("c", {4})}};
  world.mapping.rules.push_back(mapping::Rule::rename("mine", "typo", "a"));
  EXPECT_EQ(verdict(world), "R43; R39 c; R39 odd");
}

TEST(PlannerTogether, R47_KeysOfABuildThatFailsAreNotUnexpected) {
  World world{{{"e.0", {2}}, {"w", {3}}}, {param("stack", {2, 2}), param("w", {2})}};
  world.build("stack",
              mapping::Expression::stack(0, {mapping::Expression::source("e.0"), mapping::Expression::source("e.1")}));
  EXPECT_EQ(verdict(world), "R47 stack; R41 w");
}

TEST(PlannerTogether, R27_ATensorThatIsRefusedIsNotComparedWithItsUnit) {
  World world{{{"a", {4}, DType::kBF16}, {"b", {5}, DType::kBF16}},
              {trained(param("a", {4})), trained(param("b", {4}))}};
  world.mesh({{"dp", 2}}).place("*", {shard(0, 0)});
  world.layout.rules[0].placement.fsdp_group = "unit";
  EXPECT_EQ(verdict(world), "R41 b") << "b's dtype was never decided";
}

TEST(PlannerTogether, R52_ATieWithABadCutIsNotAlsoPlacedDifferently) {
  World world{{{"a", {4}}}, {param("a", {4}), param("b", {4})}, {{"a", "b"}}};
  world.mesh({{"dp", 2}}).place("a", {shard(0, 0)}).place("b", {shard(0, 1)});
  EXPECT_EQ(verdict(world), "R53 b");
}

TEST(PlannerTogether, R39_R43_APolicyThatCannotBeDoesNotHideTheRest) {
  World world{{{"a", {4}}}, {param("a", {4}), param("gone", {4})}};
  world.policy.dtype = DType::kI32;
  world.policy.keep = {"nothing"};
  const auto plan = world.plan();
  ASSERT_FALSE(plan);
  const std::string text = all_text(plan.error());
  for (const char* part : {"dtype", "\"gone\"", "\"nothing\""}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  EXPECT_EQ(plan.error().size(), 3U) << text;
}

TEST(PlannerTogether, R53_AMeshThatCannotBeDoesNotHideTheRest) {
  World world{{{"a", {4}}}, {param("a", {4}), param("gone", {4})}};
  world.mesh({{"dp", 0}});
  const auto plan = world.plan({0});
  ASSERT_FALSE(plan);
  EXPECT_NE(verdict(plan).find("R39 gone"), std::string::npos) << verdict(plan);
}

TEST(PlannerTogether, R46_ARenamedKeyOfANonPersistentBufferIsIgnoredByThatRule) {
  World world{{{"m.inv_freq", {2}}, {"w", {2}}, {"old", {2}}}, {real(table("inv_freq", {2})), param("w", {2})}};
  world.mapping.rules.push_back(mapping::Rule::rename_pattern("strip", "m\\.(.*)", "\\1"));
  world.mapping.rules.push_back(mapping::Rule::rename("name", "old", "inv_freq"));
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  const std::vector<std::pair<std::string, std::string>> ignored = {{"m.inv_freq", "non-persistent"},
                                                                    {"old", "non-persistent"}};
  EXPECT_EQ(plan->ignored_keys, ignored);
  EXPECT_EQ(source_of(plan, "inv_freq"), "kept R7");
}

TEST(PlannerTogether, R46_AKeyThatABuildRuleMakesANonPersistentBufferOf) {
  World world{{{"raw", {2}}, {"w", {2}}}, {real(table("inv_freq", {2})), param("w", {2})}};
  world.build("inv_freq", mapping::Expression::source("raw"));
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(plan->ignored_keys.size(), 1U);
  EXPECT_EQ(source_of(plan, "inv_freq"), "kept R7") << "never loaded";
}

TEST(PlannerTogether, R43_ARuleHidesOnlyWhatItCouldHaveSupplied) {
  World world{{{"other", {4}}, {"w", {4}}}, {param("miss", {4}), param("w", {4})}};
  world.mapping.rules = {mapping::Rule::ignore("i", "nothing")};
  EXPECT_EQ(verdict(world), "R43; R39 miss; R39 other") << "an ignored key is nobody's source";
  world.mapping.rules.clear();
  world.build("absent", mapping::Expression::source("x"));
  EXPECT_EQ(verdict(world), "R43; R39 miss; R39 other");
  world.mapping.rules.clear();
  world.build("absent", mapping::Expression::source("other"));
  EXPECT_EQ(verdict(world), "R43; R39 miss") << "the key is the rule's";
  world.mapping.rules = {mapping::Rule::rename_pattern("p", "q\\.(.*)", "model.\\1")};
  EXPECT_EQ(verdict(world), "R43; R39 miss") << "any key may have been meant, but no such tensor";
  world.mapping.rules = {mapping::Rule::rename_pattern("p", "q\\.(.*)", "m\\1s")};
  EXPECT_EQ(verdict(world), "R43") << "it could have been the source";
}

TEST(PlannerTogether, R66_OnlyTheCircleIsTold) {
  World world{{{"w", {4}}},
              {param("w", {4}), derived(table("a", {4}), call({"b"})), derived(table("b", {4}), call({"a"})),
               derived(table("c", {4}), call({"b"}))}};
  EXPECT_EQ(verdict(world), "R66 a; R66 b") << "c only waits for them";
}

}  // namespace
}  // namespace lading::planner
