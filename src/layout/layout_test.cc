#include "layout/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "layout/region.h"

namespace lading::layout {
namespace {

using ::testing::HasSubstr;

Placement sharded(std::size_t dim) {
  Cut cut;
  cut.dim = dim;
  cut.axes = {0};
  Placement placement;
  placement.slots.front().cuts.push_back(cut);
  return placement;
}

TEST(Layout, TheFirstRuleThatMatchesDecides) {
  Layout layout;
  layout.rules = {{"a.*", sharded(0)}, {"*.weight", sharded(1)}, {"b.weight", sharded(2)}, {"b.bias", sharded(3)}};
  EXPECT_EQ(layout.placement_of("a.weight"), sharded(0));
  EXPECT_EQ(layout.placement_of("b.weight"), sharded(1));
  EXPECT_EQ(layout.placement_of("b.bias"), sharded(3));
  EXPECT_EQ(layout.placement_of("c"), Placement{});
  EXPECT_EQ(Placement{}.slots.size(), 1U);
}

TEST(Layout, ANameIsNoPattern) {
  Layout layout;
  layout.mesh = Mesh({{"dp", 2}});
  layout.rules = {{NamePattern::exact("w*"), sharded(0)}, {NamePattern::exact("wa"), sharded(1)}};
  EXPECT_EQ(layout.placement_of("w*"), sharded(0));
  EXPECT_EQ(layout.placement_of("wa"), sharded(1));
  EXPECT_EQ(layout.placement_of("wb"), Placement{});
  EXPECT_TRUE(check_layout(layout, {{"w*", {4}, true}, {"wa", {4, 4}, true}}).empty());
  EXPECT_EQ(check_layout(layout, {{"wa", {4, 4}, true}}).front().rule, "R43");
}

TEST(Layout, TwentyThousandNamesAreLookedUpAtOnce) {
  Layout layout;
  layout.mesh = Mesh({{"dp", 2}});
  std::vector<std::string> names;
  for (int i = 0; i < 20'000; ++i) names.push_back("layers.*." + std::to_string(i));
  std::vector<TensorToPlace> tensors;
  for (const std::string& name : names) {
    layout.rules.push_back({NamePattern::exact(name), sharded(0)});
    tensors.push_back({name, {4}, true});
  }
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(check_layout(layout, tensors).empty());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
}

TEST(Layout, TheIndexGivesTheSameAnswers) {
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    Layout layout;
    for (std::size_t i = 0; i < 8; ++i) {
      std::string pattern(std::uniform_int_distribution<std::size_t>(0, 3)(random), 'a');
      for (char& c : pattern) c = "aab*"[std::uniform_int_distribution<std::size_t>(0, 3)(random)];
      layout.rules.push_back({random() % 2 == 0 ? NamePattern(pattern) : NamePattern::exact(pattern), sharded(i)});
    }
    const PlacementIndex index(layout);
    for (const char* const name : {"", "a", "b", "aa", "ab", "ba", "bb", "aab", "aba", "x", "*", "a*", "*b"}) {
      ASSERT_EQ(index.of(name), layout.placement_of(name));
    }
  }
}

TEST(Layout, R57_BuffersAreCutLikeAnythingElse) {
  Layout layout;
  layout.mesh = Mesh({{"tp", 2}});
  layout.rules = {{"*.e_score_correction_bias", sharded(0)}};
  const auto& cuts = layout.placement_of("gate.e_score_correction_bias").slots.front().cuts;
  EXPECT_EQ(region_of({4}, cuts, layout.mesh, 1).runs.at(0), (std::vector<layout::Run>{{2, 0, 2}}));
  EXPECT_TRUE(check_layout(layout, {{"gate.e_score_correction_bias", {4}, false}}).empty());
}

TEST(CheckLayout, R43_ARuleThatMatchesNothingIsAnError) {
  Layout layout;
  layout.mesh = Mesh({{"dp", 2}});
  layout.rules = {{"layers.*", sharded(0)}, {"norm", sharded(0)}, {"model.*", sharded(0)}};
  const Errors errors = check_layout(layout, {{"model.layers.0.weight", {4, 4}, true}});
  ASSERT_EQ(errors.size(), 2U);
  EXPECT_EQ(errors.list()[0].rule, "R43");
  EXPECT_THAT(errors.list()[0].message, HasSubstr("layers.*"));
  EXPECT_THAT(errors.list()[1].message, HasSubstr("norm"));
}

TEST(CheckLayout, R41_ProblemsNameTheTensor) {
  Layout layout;
  layout.mesh = Mesh({{"dp", 2}});
  layout.rules = {{"*", sharded(1)}};
  const Errors errors = check_layout(layout, {{"a", {4, 4}, true}, {"b", {4}, true}, {"c", {}, true}});
  ASSERT_EQ(errors.size(), 2U);
  EXPECT_EQ(errors.list()[0].tensor, "b");
  EXPECT_EQ(errors.list()[1].tensor, "c");
}

TEST(CheckLayout, R34_DevicesAreOnePerRank) {
  Layout layout;
  layout.mesh = Mesh({{"dp", 2}});
  layout.devices.list = {{DeviceType::kCuda, 0}};
  EXPECT_EQ(check_layout(layout, {}).front().rule, "R34");
  layout.devices.list = {{DeviceType::kCuda, 0}, {DeviceType::kCuda, 128}};
  EXPECT_EQ(check_layout(layout, {}).front().rule, "R34");
  layout.devices = {{}, DeviceType::kCuda, 0};
  EXPECT_EQ(check_layout(layout, {}).front().rule, "R34");
  layout.devices = {{}, DeviceType::kCuda, 129};
  EXPECT_EQ(check_layout(layout, {}).front().rule, "R34");
  layout.devices = {{}, DeviceType::kCuda, 8};
  EXPECT_TRUE(check_layout(layout, {}).empty());
}

Placement in_unit(std::uint64_t offset, std::uint64_t elems) {
  Placement placement = sharded(0);
  Cut& cut = placement.slots.front().cuts.front();
  cut.kind = CutKind::kFlatGroup;
  cut.flat_parameter = "u";
  cut.group_offset_elems = offset;
  cut.group_elems = elems;
  return placement;
}

TEST(CheckLayout, R11_MembersOfASharedBufferDoNotOverlap) {
  Layout layout;
  layout.mesh = Mesh({{"dp", 2}});
  layout.rules = {{"a", in_unit(0, 20)}, {"b", in_unit(10, 20)}, {"c", in_unit(10, 20)}};
  EXPECT_TRUE(check_layout(layout, {{"a", {10}, true}, {"b", {0}, true}, {"c", {10}, true}}).empty());
  const Errors errors = check_layout(layout, {{"a", {11}, true}, {"b", {0}, true}, {"c", {10}, true}});
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors.front().rule, "R11");
  EXPECT_EQ(errors.front().tensor, "c");
  layout.rules.back().placement = in_unit(10, 24);
  EXPECT_EQ(check_layout(layout, {{"a", {10}, true}, {"b", {0}, true}, {"c", {10}, true}}).front().rule, "R56");
}

TEST(CheckLayout, SlotsHaveNamesOfTheirOwn) {
  Layout layout;
  layout.rules = {{"a", Placement{}}};
  const std::vector<TensorToPlace> tensors = {{"a", {1}, true}};
  EXPECT_TRUE(check_layout(layout, tensors).empty());
  auto& slots = layout.rules[0].placement.slots;
  slots.push_back({"secondary", {}});
  EXPECT_TRUE(check_layout(layout, tensors).empty());
  slots.push_back({"secondary", {}});
  EXPECT_EQ(check_layout(layout, tensors).size(), 1U);
  slots.clear();
  EXPECT_EQ(check_layout(layout, tensors).size(), 1U);
}

}  // namespace
}  // namespace lading::layout
