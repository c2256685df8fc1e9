#include "layout/owned_runs.h"

#include <gtest/gtest.h>

#include <random>

#include "layout/region.h"

namespace lading::layout {
namespace {

Mesh mesh_of(std::vector<Axis> axes) { return Mesh(std::move(axes)); }

// (buffer element, global element), one by one.
std::vector<std::pair<std::uint64_t, std::uint64_t>> all_of(const OwnedRuns& runs, std::uint64_t begin,
                                                            std::uint64_t end) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> elements;
  runs.for_each(begin, end, [&](const OwnedRun& run) {
    EXPECT_GT(run.elems, 0U);
    for (std::uint64_t i = 0; i < run.elems; ++i) elements.emplace_back(run.buffer_begin + i, run.global_begin + i);
  });
  return elements;
}

// The same from the meaning of a region: an index in every dim, mapped run by run.
std::vector<std::pair<std::uint64_t, std::uint64_t>> by_meaning(const Region& region, const Shape& global) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> elements;
  const std::uint64_t held = region.local_shape.num_elems().value();
  for (std::uint64_t i = 0; i < held; ++i) {
    if (region.flat && (i < region.flat->begin || i >= region.flat->end)) continue;
    std::uint64_t rest = i;
    std::uint64_t global_index = 0;
    std::uint64_t stride = 1;
    for (std::size_t d = global.rank(); d-- > 0;) {
      const std::uint64_t local = rest % region.local_shape[d];
      rest /= region.local_shape[d];
      for (const Run& run : region.runs[d]) {
        if (local >= run.local_begin && local < run.local_begin + run.size)
          global_index += (run.begin + local - run.local_begin) * stride;
      }
      stride *= global[d];
    }
    elements.emplace_back(region.flat ? i - region.flat->begin + region.flat->buffer_begin : i, global_index);
  }
  return elements;
}

TEST(OwnedRuns, AWholeTensorIsOneRun) {
  const Shape shape{3, 4};
  const OwnedRuns runs(region_of(shape, {}, Mesh(), 0), shape);
  std::vector<OwnedRun> seen;
  runs.for_each(2, 11, [&](const OwnedRun& run) { seen.push_back(run); });
  EXPECT_EQ(seen, (std::vector<OwnedRun>{{2, 2, 9}}));
}

TEST(OwnedRuns, AScalarIsOneElement) {
  const OwnedRuns runs(region_of(Shape{}, {}, Mesh(), 0), Shape{});
  EXPECT_EQ(all_of(runs, 0, 1), (std::vector<std::pair<std::uint64_t, std::uint64_t>>{{0, 0}}));
}

TEST(OwnedRuns, ColumnsAreOneRunPerRow) {
  const Shape shape{2, 6};
  Cut cut;
  cut.axes = {0};
  cut.dim = 1;
  const OwnedRuns runs(region_of(shape, {cut}, mesh_of({{"tp", 3}}), 1), shape);
  std::vector<OwnedRun> seen;
  runs.for_each(0, 4, [&](const OwnedRun& run) { seen.push_back(run); });
  EXPECT_EQ(seen, (std::vector<OwnedRun>{{0, 2, 2}, {2, 8, 2}}));
}

TEST(OwnedRuns, R56PaddingIsPassedOver) {
  const Shape shape{15};
  Cut cut;
  cut.kind = CutKind::kFlat;
  cut.axes = {0};
  const Mesh mesh = mesh_of({{"dp", 4}});
  const Region last = region_of(shape, {cut}, mesh, 3);
  ASSERT_EQ(last.buffer_elems, 4U);
  const OwnedRuns runs(last, shape);
  EXPECT_EQ(all_of(runs, 0, last.buffer_elems).size(), 3U);
}

TEST(OwnedRuns, AgreesWithTheMeaningOfRegionsOverRandomCuts) {
  std::mt19937_64 dice(7);
  const auto below = [&](std::uint64_t n) { return dice() % n; };
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::uint64_t> dims(below(4));
    for (auto& dim : dims) dim = below(7);
    const Shape shape(dims);
    const Mesh mesh = mesh_of({{"a", 1 + below(4)}, {"b", 1 + below(3)}});
    std::vector<Cut> cuts;
    for (std::size_t axis = 0; axis < 2; ++axis) {
      if (below(3) == 0) continue;
      Cut cut;
      cut.axes = {axis};
      if (below(3) == 0 && (axis == 1 || cuts.empty())) {
        cut.kind = CutKind::kFlat;
        cuts.push_back(cut);
        break;
      }
      if (dims.empty()) continue;
      cut.dim = below(dims.size());
      if (below(3) == 0) {
        cut.kind = CutKind::kStridedShard;
        cut.split_factor = 1 + below(3);
      }
      cuts.push_back(cut);
    }
    if (!check_cuts(shape, cuts, mesh).empty()) continue;
    for (std::uint64_t rank = 0; rank < mesh.ranks(); ++rank) {
      const Region region = region_of(shape, cuts, mesh, rank);
      const OwnedRuns runs(region, shape);
      const auto expected = by_meaning(region, shape);
      ASSERT_EQ(all_of(runs, 0, region.buffer_elems), expected);
      const std::uint64_t begin = below(region.buffer_elems + 1);
      const std::uint64_t end = begin + below(region.buffer_elems - begin + 1);
      std::vector<std::pair<std::uint64_t, std::uint64_t>> part;
      for (const auto& element : expected) {
        if (element.first >= begin && element.first < end) part.push_back(element);
      }
      ASSERT_EQ(all_of(runs, begin, end), part);
    }
  }
}

}  // namespace
}  // namespace lading::layout
