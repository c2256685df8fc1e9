#include "base/loop_nest.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace lading {
namespace {

using Offsets = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

Offsets offsets_of(const std::vector<ByteLoop>& loops) {
  Offsets all;
  const bool is_done = for_each_run(loops, [&](const RunOffsets& at) {
    all.emplace_back(at.source, at.target);
    return true;
  });
  EXPECT_TRUE(is_done);
  return all;
}

TEST(LoopNest, TheInnermostLoopTurnsFastest) {
  EXPECT_EQ(offsets_of({}), (Offsets{{0, 0}}));
  EXPECT_EQ(offsets_of({{2, 100, 6}, {3, 10, 2}}), (Offsets{{0, 0}, {10, 2}, {20, 4}, {100, 6}, {110, 8}, {120, 10}}));
  EXPECT_EQ(offsets_of({{2, 1, 50}, {1, 7, 7}, {2, 10, 3}}), (Offsets{{0, 0}, {10, 3}, {1, 50}, {11, 53}}));
  EXPECT_TRUE(offsets_of({{3, 1, 1}, {0, 1, 1}}).empty());
}

TEST(LoopNest, StopsWhenToldTo) {
  int calls = 0;
  EXPECT_FALSE(for_each_run(std::vector<ByteLoop>{{9, 1, 1}}, [&](const RunOffsets&) { return ++calls < 4; }));
  EXPECT_EQ(calls, 4);
}

TEST(LoopNest, RunsGrowByWhatGoesOnOnBothSides) {
  std::vector<ElementLoop> loops = {{3, 40, 80}, {2, 20, 20}, {5, 4, 4}};
  EXPECT_EQ(grow_run(4, loops), 40U);
  EXPECT_EQ(loops, (std::vector<ElementLoop>{{3, 40, 80}}));
  EXPECT_EQ(grow_run(40, loops), 40U) << "the target has gaps";
  EXPECT_EQ(rounds_of(loops), 3U);
  EXPECT_EQ(source_reach(loops), 80U);
}

TEST(LoopNest, StridesOfRowMajorTensors) {
  EXPECT_EQ(strides_of(Shape({2, 3, 4})), (Strides{12, 4, 1}));
  EXPECT_EQ(offset_of(std::vector<std::uint64_t>{1, 2, 3}, strides_of(Shape({2, 3, 4}))), 23U);
  EXPECT_TRUE(strides_of(Shape()).empty());
}

}  // namespace
}  // namespace lading
