// The contract's own examples.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/checked.h"
#include "layout/layout.h"
#include "layout/region.h"

namespace lading::layout {
namespace {

using ::testing::ElementsAre;

Cut shard(std::size_t dim, std::vector<std::size_t> axes) {
  Cut cut;
  cut.dim = dim;
  cut.axes = std::move(axes);
  return cut;
}
Cut strided(std::size_t dim, std::uint64_t split_factor, std::vector<std::size_t> axes) {
  Cut cut = shard(dim, std::move(axes));
  cut.kind = CutKind::kStridedShard;
  cut.split_factor = split_factor;
  return cut;
}
Cut flat(std::uint64_t pad_multiple, std::vector<std::size_t> axes) {
  Cut cut = shard(0, std::move(axes));
  cut.kind = CutKind::kFlat;
  cut.pad_multiple = pad_multiple;
  return cut;
}
Cut owner(std::vector<std::uint64_t> owners, std::vector<std::size_t> axes) {
  Cut cut = shard(0, std::move(axes));
  cut.kind = CutKind::kOwner;
  cut.owners = std::move(owners);
  return cut;
}

std::vector<std::uint64_t> indices(const std::vector<Run>& runs) {
  std::vector<std::uint64_t> out;
  for (const Run& run : runs) {
    EXPECT_EQ(run.local_begin, out.size());
    for (std::uint64_t i = 0; i < run.size; ++i) out.push_back(run.begin + i);
  }
  return out;
}

std::vector<std::uint64_t> rows(const Shape& shape, const std::vector<Cut>& cuts, const Mesh& mesh,
                                std::uint64_t rank) {
  EXPECT_TRUE(check_cuts(shape, cuts, mesh).empty());
  return indices(region_of(shape, cuts, mesh, rank).runs.at(0));
}

TEST(Region, R53_ShardIsTorchChunk) {
  const Mesh mesh({{"dp", 4}});
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t rank = 0; rank < 4; ++rank) sizes.push_back(rows({5}, {shard(0, {0})}, mesh, rank).size());
  EXPECT_THAT(sizes, ElementsAre(2, 2, 1, 0));
}

TEST(Region, R53_AnEmptyRankStillHasARegion) {
  const Region region = region_of({1, 6}, {shard(0, {0})}, Mesh({{"dp", 4}}), 3);
  EXPECT_TRUE(region.present);
  EXPECT_EQ(region.owned_elems(), 0U);
  EXPECT_EQ(region.local_shape, (Shape{0, 6}));
  EXPECT_EQ(region.buffer_elems, 0U);
}

TEST(Region, R54_Fsdp2OverTpIsTpFirst) {
  const Mesh mesh({{"dp", 4}, {"tp", 2}});
  const std::vector<Cut> cuts = {shard(0, {1}), shard(0, {0})};
  std::vector<std::uint64_t> gathered;
  for (std::uint64_t tp = 0; tp < 2; ++tp) {
    for (std::uint64_t dp = 0; dp < 4; ++dp) {
      for (const std::uint64_t row : rows({25}, cuts, mesh, dp * 2 + tp)) gathered.push_back(row);
    }
  }
  std::vector<std::uint64_t> all(25);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  EXPECT_EQ(gathered, all);
  EXPECT_THAT(rows({25}, cuts, mesh, 6), ElementsAre(12));
  EXPECT_THAT(rows({25}, cuts, mesh, 7), ElementsAre(22, 23, 24));
  // What DTensor's metadata says instead.
  EXPECT_THAT(rows({25}, {strided(0, 2, {0}), shard(0, {1})}, mesh, 6), ElementsAre(12, 22));
}

TEST(Region, R55_StridedShardsAreRunLists) {
  const Mesh mesh({{"tp", 2}});
  EXPECT_THAT(rows({8, 3}, {strided(0, 2, {0})}, mesh, 0), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(rows({8, 3}, {strided(0, 2, {0})}, mesh, 1), ElementsAre(2, 3, 6, 7));
  const Region region = region_of({8, 3}, {strided(0, 2, {0})}, mesh, 1);
  EXPECT_THAT(region.runs[0], ElementsAre(layout::Run{2, 0, 2}, layout::Run{6, 2, 2}));
  EXPECT_THAT(region.runs[1], ElementsAre(layout::Run{0, 0, 3}));
  EXPECT_EQ(region.local_shape, (Shape{4, 3}));
}

TEST(Region, R55_UnevenGroupsFollowNestedChunks) {
  const Mesh mesh({{"tp", 4}});
  EXPECT_THAT(rows({25}, {strided(0, 2, {0})}, mesh, 3), ElementsAre(12, 22, 23, 24));
  EXPECT_TRUE(rows({10}, {strided(0, 2, {0})}, mesh, 3).empty());
  EXPECT_THAT(rows({3}, {strided(0, 4, {0})}, Mesh({{"tp", 2}}), 0), ElementsAre(0, 1, 2));
}

TEST(Region, R55_ShardsComposeOnTheCurrentList) {
  // Fused gate and up over tp, then FSDP2 on the same dim: chunks of the list 0 1 4 5.
  const Mesh mesh({{"dp", 2}, {"tp", 2}});
  EXPECT_THAT(rows({8}, {strided(0, 2, {1}), shard(0, {0})}, mesh, 0), ElementsAre(0, 1));
  EXPECT_THAT(rows({8}, {strided(0, 2, {1}), shard(0, {0})}, mesh, 2), ElementsAre(4, 5));
  const Region across = region_of({12}, {strided(0, 2, {1}), shard(0, {0})}, mesh, 0);
  EXPECT_THAT(across.runs[0], ElementsAre(layout::Run{0, 0, 3}));
}

TEST(Region, R56_FlatPartitionsArePadded) {
  const Mesh mesh({{"dp", 4}});
  const Region last = region_of({3, 5}, {flat(0, {0})}, mesh, 3);
  EXPECT_EQ(last.flat, (Region::Flat{12, 15, 0}));
  EXPECT_EQ(last.buffer_elems, 4U);
  EXPECT_EQ(last.owned_elems(), 3U);
  const Region nothing = region_of({1}, {flat(0, {0})}, mesh, 2);
  EXPECT_EQ(nothing.owned_elems(), 0U);
  EXPECT_EQ(nothing.buffer_elems, 1U);
}

TEST(Region, R56_SecondPartitionOfZeroPlusPlusIsPaddedToTheWorld) {
  const Mesh mesh({{"node", 2}, {"hpz", 2}});
  EXPECT_EQ(region_of({9}, {flat(4, {1})}, mesh, 0).buffer_elems, 6U);
  EXPECT_EQ(region_of({9}, {flat(4, {1})}, mesh, 3).flat, (Region::Flat{6, 9, 0}));
  EXPECT_EQ(region_of({105}, {flat(4, {1})}, mesh, 0).buffer_elems, 54U);
  EXPECT_EQ(region_of({1}, {flat(4, {1})}, mesh, 0).buffer_elems, 2U);
}

TEST(Region, R56_SharedBuffersAreChunkedAsOne) {
  // Two tensors of 15 and 5 elements, aligned to 4, in a unit of 24 over 4 ranks.
  Cut cut;
  cut.kind = CutKind::kFlatGroup;
  cut.axes = {0};
  cut.flat_parameter = "layer";
  cut.group_offset_elems = 16;
  cut.group_elems = 24;
  const Mesh mesh({{"dp", 4}});
  const Region second = region_of({5}, {cut}, mesh, 2);
  EXPECT_EQ(second.flat, (Region::Flat{0, 2, 4}));
  EXPECT_EQ(second.buffer_elems, 6U);
  EXPECT_EQ(second.flat_parameter, "layer");
  EXPECT_EQ(region_of({5}, {cut}, mesh, 3).flat, (Region::Flat{2, 5, 0}));
  EXPECT_EQ(region_of({5}, {cut}, mesh, 0).owned_elems(), 0U);
}

TEST(Region, R59_ExpertsKeepTheirGlobalNumbers) {
  const Mesh mesh({{"ep", 2}});
  const Region second = region_of({4, 6, 3}, {shard(0, {0})}, mesh, 1);
  EXPECT_THAT(second.runs[0], ElementsAre(layout::Run{2, 0, 2}));
  // The names of experts that are tensors of their own are not renumbered either: they have owners.
  EXPECT_FALSE(region_of({6, 3}, {owner({1}, {0})}, mesh, 0).present);
  EXPECT_TRUE(region_of({6, 3}, {owner({1}, {0})}, mesh, 1).present);
}

TEST(Region, R59_ExpertsThenFsdpOnAnotherDim) {
  const Mesh mesh({{"ep_shard", 4}, {"ep", 2}});
  const Region region = region_of({5, 8}, {shard(0, {1}), shard(1, {0})}, mesh, 7);
  EXPECT_THAT(region.runs[0], ElementsAre(layout::Run{3, 0, 2}));
  EXPECT_THAT(region.runs[1], ElementsAre(layout::Run{6, 0, 2}));
}

TEST(Region, AbsentOwnsNothing) {
  const Region region = region_of({}, {owner({0}, {0})}, Mesh({{"pp", 2}}), 1);
  EXPECT_FALSE(region.present);
  EXPECT_EQ(region.owned_elems(), 0U);
  EXPECT_EQ(region.buffer_elems, 0U);
}

TEST(Region, ScalarsAndEmptyTensors) {
  const Mesh mesh({{"dp", 3}});
  EXPECT_EQ(region_of({}, {}, mesh, 2).owned_elems(), 1U);
  EXPECT_EQ(region_of({}, {flat(0, {0})}, mesh, 0).owned_elems(), 1U);
  EXPECT_EQ(region_of({}, {flat(0, {0})}, mesh, 1).owned_elems(), 0U);
  EXPECT_EQ(region_of({}, {flat(0, {0})}, mesh, 1).buffer_elems, 1U);
  EXPECT_EQ(region_of({0, 3}, {shard(0, {0})}, mesh, 0).local_shape, (Shape{0, 3}));
  EXPECT_EQ(region_of({0, 3}, {shard(1, {0})}, mesh, 0).local_shape, (Shape{0, 1}));
  EXPECT_EQ(region_of({0, 3}, {flat(0, {0})}, mesh, 0).buffer_elems, 0U);
  EXPECT_TRUE(region_of({0}, {strided(0, 7, {0})}, mesh, 0).runs[0].empty());
}

TEST(Region, LargestSizesDoNotOverflow) {
  const Mesh mesh({{"dp", Mesh::kMaxRanks}});
  const std::uint64_t last = Mesh::kMaxRanks - 1;
  const Shape huge{kMaxSize};
  ASSERT_TRUE(check_cuts(huge, {shard(0, {0})}, mesh).empty());
  const Region region = region_of(huge, {shard(0, {0})}, mesh, last);
  EXPECT_EQ(region.runs[0].back().begin + region.runs[0].back().size, kMaxSize);
  EXPECT_TRUE(region_of({3}, {shard(0, {0})}, mesh, last).runs[0].empty());
  // 2^63 - 1 rounded up is too much; 2^63 - 2^32 is not.
  EXPECT_EQ(check_cuts(huge, {flat(0, {0})}, mesh).front().rule, "R56");
  const Shape fits{kMaxSize + 1 - Mesh::kMaxRanks};
  ASSERT_TRUE(check_cuts(fits, {flat(0, {0})}, mesh).empty());
  EXPECT_EQ(region_of(fits, {flat(0, {0})}, mesh, last).flat->end, fits[0]);
}

TEST(Region, AHugeSplitFactorOfASmallDimCostsNothing) {
  const Mesh mesh({{"tp", 2}});
  const std::vector<Cut> cuts = {strided(0, ~std::uint64_t{0}, {0})};
  EXPECT_THAT(rows({3}, cuts, mesh, 0), ElementsAre(0, 1, 2));
  EXPECT_EQ(check_cuts({kMaxSize}, cuts, mesh).front().rule, "R55");
}

}  // namespace
}  // namespace lading::layout
