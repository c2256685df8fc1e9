// A checkpoint and a model without a common name: one sentence first, then the names, folded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/problems/folding.h"
#include "support/planner_support.h"

namespace lading::planner {
namespace {

using namespace world;  // NOLINT(google-build-using-namespace): the tests' own words
using ::testing::HasSubstr;
using ::testing::Not;

World strangers(int layers) {
  World world;
  for (int i = 0; i < layers; ++i) {
    world.keys.push_back({"transformer.h." + std::to_string(i) + ".w", {2}});
    world.tensors.push_back(param("blocks." + std::to_string(i) + ".weight", {2}));
  }
  return world;
}

TEST(NothingInCommon, R39_IsTheFirstSentenceWithNamesOfBoth) {
  const auto plan = strangers(2).plan();
  ASSERT_FALSE(plan);
  const Error& first = plan.error().front();
  EXPECT_THAT(first.message, HasSubstr("no tensor in common"));
  EXPECT_THAT(first.expected, HasSubstr("blocks.0.weight"));
  EXPECT_THAT(first.found, HasSubstr("transformer.h.1.w"));
  EXPECT_THAT(first.remedy, HasSubstr("--mapping"));
  EXPECT_EQ(plan.error().size(), 1U + 4U);
}

TEST(NothingInCommon, R39_ManyNamesAreFoldedWhereTheyAreShown) {
  const auto plan = strangers(40).plan();
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().size(), 1U + 80U) << "all of them are in the JSON";
  const std::vector<std::string> lines = folded(plan.error());
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_THAT(lines[0], HasSubstr("no tensor in common"));
  EXPECT_THAT(lines[1], HasSubstr("40 tensors \"blocks.{0..39}.weight\": the checkpoint does not have this parameter"));
  EXPECT_THAT(lines[2], HasSubstr("40 tensors \"transformer.h.{0..39}.w\": the checkpoint has a tensor"));
}

TEST(NothingInCommon, R39_ACommonNameMakesEveryOtherCount) {
  World world = strangers(40);
  world.keys.push_back({"blocks.7.weight", {2}});
  const auto plan = world.plan();
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().size(), 39U + 40U);
  EXPECT_THAT(plan.error().front().message, Not(HasSubstr("no tensor in common")));
}

}  // namespace
}  // namespace lading::planner
