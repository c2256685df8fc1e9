// A checkpoint and a model without a common name: one sentence first, then a line for each pattern of names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  EXPECT_THAT(first.remedy, HasSubstr("mapping="));
  EXPECT_EQ(plan.error().size(), 1U + 4U) << "few names are told one by one";
}

TEST(NothingInCommon, R39_ManyNamesAreToldByPattern) {
  const auto plan = strangers(40).plan();
  ASSERT_FALSE(plan);
  ASSERT_EQ(plan.error().size(), 3U);
  const auto told = std::vector<Error>(plan.error().begin(), plan.error().end());
  EXPECT_EQ(told[1].tensor, "blocks.*.weight");
  EXPECT_THAT(told[1].message, HasSubstr("40 tensors"));
  EXPECT_EQ(told[2].tensor, "transformer.h.*.w");
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
