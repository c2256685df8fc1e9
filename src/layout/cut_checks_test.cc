#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/checked.h"
#include "layout/layout.h"

namespace lading::layout {
namespace {

using ::testing::HasSubstr;

const Mesh& mesh() {
  static const Mesh mesh({{"dp", 4}, {"tp", 2}, {"pp", 2}});
  return mesh;
}

Cut cut(
    CutKind kind, std::vector<std::size_t> axes, const std::function<void(Cut&)>& change = [](Cut&) {}) {
  Cut made;
  made.kind = kind;
  made.axes = std::move(axes);
  change(made);
  return made;
}

struct BadCuts {
  std::string name;
  Shape shape;
  std::vector<Cut> cuts;
  std::string rule;
  std::string message;
};

TEST(CheckCuts, EveryFaultHasARuleAndAMessage) {
  const Cut group = cut(CutKind::kFlatGroup, {0}, [](Cut& c) {
    c.flat_parameter = "u";
    c.group_elems = 100;
  });
  const auto owners = [](std::vector<std::uint64_t> list) { return [list](Cut& c) { c.owners = list; }; };
  const std::vector<BadCuts> cases = {
      {"dim", {4}, {cut(CutKind::kShard, {0}, [](Cut& c) { c.dim = 1; })}, "R53", "names a dim"},
      {"scalar", {}, {cut(CutKind::kShard, {0})}, "R53", "names a dim"},
      {"no axis", {4}, {cut(CutKind::kShard, {})}, "R53", "names no axis"},
      {"unknown axis", {4}, {cut(CutKind::kShard, {3})}, "R53", "names an axis"},
      {"axis twice",
       {4, 4},
       {cut(CutKind::kShard, {0}), cut(CutKind::kShard, {0}, [](Cut& c) { c.dim = 1; })},
       "R11",
       "twice"},
      {"axis twice in one", {4}, {cut(CutKind::kShard, {1, 1})}, "R11", "twice"},
      {"split factor", {4}, {cut(CutKind::kStridedShard, {0}, [](Cut& c) { c.split_factor = 0; })}, "R55", "split"},
      {"uneven", {5, 6}, {cut(CutKind::kShard, {0}, [](Cut& c) { c.dim = 1, c.even = true; })}, "R53", "evenly"},
      {"even on flat", {5}, {cut(CutKind::kFlat, {0}, [](Cut& c) { c.even = true; })}, "R53", "plain shard"},
      {"flat not last", {4}, {cut(CutKind::kFlat, {0}), cut(CutKind::kShard, {1})}, "R56", "not the last"},
      {"pad multiple", {4}, {cut(CutKind::kFlat, {0}, [](Cut& c) { c.pad_multiple = 6; })}, "R56", "equal parts"},
      {"shard before group", {4}, {cut(CutKind::kShard, {1}), group}, "R56", "shared buffer"},
      {"owner behind group", {4}, {group, cut(CutKind::kOwner, {1}, owners({0}))}, "R56", "shared buffer"},
      {"group too small", {101}, {group}, "R11", "does not fit"},
      {"group without name", {4}, {cut(CutKind::kFlatGroup, {0}, [](Cut& c) { c.group_elems = 4; })}, "R56", "name"},
      {"group too large",
       {4},
       {cut(CutKind::kFlatGroup, {0}, [](Cut& c) { c.flat_parameter = "u", c.group_elems = kMaxSize; })},
       "R56",
       "too large"},
      {"no owner", {4}, {cut(CutKind::kOwner, {2})}, "R59", "no owner"},
      {"owner too high", {4}, {cut(CutKind::kOwner, {2}, owners({2}))}, "R59", "not a rank"},
      {"owner twice", {4}, {cut(CutKind::kOwner, {2}, owners({1, 1}))}, "R59", "twice"},
      {"too large", {kMaxSize, 2}, {}, "R41", "too large"},
  };
  for (const BadCuts& bad : cases) {
    const Errors errors = check_cuts(bad.shape, bad.cuts, mesh());
    ASSERT_EQ(errors.size(), 1U) << bad.name;
    EXPECT_EQ(errors.front().code, Code::kLayout) << bad.name;
    EXPECT_EQ(errors.front().rule, bad.rule) << bad.name;
    EXPECT_THAT(errors.front().message, HasSubstr(bad.message)) << bad.name;
  }
}

TEST(CheckCuts, FindsAllProblems) {
  const std::vector<Cut> cuts = {cut(CutKind::kShard, {0}, [](Cut& c) { c.dim = 9; }),
                                 cut(CutKind::kStridedShard, {0}, [](Cut& c) { c.split_factor = 0; }),
                                 cut(CutKind::kOwner, {7})};
  EXPECT_EQ(check_cuts({4}, cuts, mesh()).size(), 4U);
}

TEST(CheckCuts, R53_EvenIsJudgedOverAllRanks) {
  // Columns 7 over tp 2 are 4 and 3: FSDP2 on them works on one tp rank only. Seen with torch 2.13.
  const Cut tp = cut(CutKind::kShard, {1}, [](Cut& c) { c.dim = 1; });
  const Cut dp = cut(CutKind::kShard, {2}, [](Cut& c) { c.dim = 1, c.even = true; });
  const Errors errors = check_cuts({7, 7}, {tp, dp}, mesh());
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors.front().found, "3");
  EXPECT_TRUE(check_cuts({7, 8}, {tp, dp}, mesh()).empty());
}

TEST(CheckCuts, R56_GroupsMayComeBehindOwners) {
  const Cut pp = cut(CutKind::kOwner, {2}, [](Cut& c) { c.owners = {1}; });
  const Cut group = cut(CutKind::kFlatGroup, {0}, [](Cut& c) { c.flat_parameter = "u", c.group_elems = 100; });
  EXPECT_TRUE(check_cuts({100}, {pp, group}, mesh()).empty());
}

TEST(CheckCuts, ABadMeshIsReportedFirst) { EXPECT_FALSE(check_cuts({4}, {}, Mesh({{"dp", 0}})).empty()); }

TEST(CheckCuts, HostileCutsEndQuickly) {
  // Each of 32 strided cuts can double the number of different local sizes.
  std::vector<Axis> axes;
  std::vector<Cut> cuts;
  for (std::size_t i = 0; i < 32; ++i) {
    axes.push_back({"a" + std::to_string(i), 2});
    cuts.push_back(cut(CutKind::kStridedShard, {i}, [&](Cut& c) { c.split_factor = 1000 + 7 * i; }));
  }
  cuts.back().kind = CutKind::kShard;
  cuts.back().even = true;
  EXPECT_FALSE(check_cuts({kMaxSize}, cuts, Mesh(axes)).empty());
}

}  // namespace
}  // namespace lading::layout
