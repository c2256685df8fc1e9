#include "ledger/recorded_region.h"

#include <gtest/gtest.h>

#include <random>

#include "ledger/ledger_for_tests.h"

namespace lading::ledger {
namespace {

std::vector<std::uint64_t> walked(const RecordedRegion& region, const Shape& shape, std::uint64_t at_most) {
  std::vector<std::uint64_t> elements;
  for (RegionCursor cursor(region, shape); !cursor.done();) {
    const std::uint64_t elems = std::min(at_most, cursor.elems());
    for (std::uint64_t i = 0; i < elems; ++i) elements.push_back(cursor.begin() + i);
    cursor.advance(elems);
  }
  return elements;
}

TEST(LedgerRegion, CursorMeetsTheElementsOneByOne) {
  std::mt19937_64 dice(7);
  const auto below = [&](std::uint64_t bound) { return dice() % bound; };
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::uint64_t> dims(below(4));
    for (auto& dim : dims) dim = 1 + below(6);
    const Shape shape(dims);
    RecordedRegion region = RecordedRegion::whole(shape);
    for (std::size_t d = 0; d < dims.size(); ++d) {
      if (below(2) == 0) continue;
      region.runs[d].clear();
      for (std::uint64_t at = below(3); at < dims[d]; at += 1 + below(2)) {
        const std::uint64_t size = 1 + below(dims[d] - at);
        region.runs[d].push_back({at, size});
        at += size;
      }
    }
    if (below(2) == 0) {
      const std::uint64_t begin = below(region.product_elems() + 1);
      region.flat = RecordedRegion::Stretch{begin, begin + below(region.product_elems() - begin + 1)};
    }
    ASSERT_TRUE(satisfies_invariants(region, shape));
    const auto expected = test::elements_of(region, shape);
    EXPECT_EQ(region.elems(), expected.size());
    EXPECT_EQ(walked(region, shape, 1000), expected) << i;
    EXPECT_EQ(walked(region, shape, 1 + below(3)), expected) << i;
  }
}

TEST(LedgerRegion, StretchesAreAsLongAsTheyCanBe) {
  const Shape shape{4, 3, 5};
  const RecordedRegion whole = RecordedRegion::whole(shape);
  EXPECT_EQ(RegionCursor(whole, shape).elems(), 60U);
  RecordedRegion rows = whole;
  rows.runs[0] = {{1, 2}};
  EXPECT_EQ(RegionCursor(rows, shape).begin(), 15U);
  EXPECT_EQ(RegionCursor(rows, shape).elems(), 30U);
}

TEST(LedgerRegion, RefusesWhatIsNoRegionOfTheShape) {
  const Shape shape{4, 6};
  const RecordedRegion whole = RecordedRegion::whole(shape);
  const auto with = [&](auto change) {
    RecordedRegion region = whole;
    change(region);
    return satisfies_invariants(region, shape);
  };
  EXPECT_TRUE(with([](RecordedRegion&) {}));
  EXPECT_TRUE(with([](RecordedRegion& r) { r.runs[1] = {{0, 2}, {3, 3}}; }));
  EXPECT_FALSE(with([](RecordedRegion& r) { r.runs.pop_back(); }));
  EXPECT_FALSE(with([](RecordedRegion& r) { r.runs[1] = {{0, 7}}; }));
  EXPECT_FALSE(with([](RecordedRegion& r) { r.runs[1] = {{6, 0}}; }));
  EXPECT_FALSE(with([](RecordedRegion& r) { r.runs[1] = {{0, 2}, {2, 2}}; }));  // could be joined
  EXPECT_FALSE(with([](RecordedRegion& r) { r.runs[1] = {{3, 2}, {0, 2}}; }));
  EXPECT_FALSE(with([](RecordedRegion& r) { r.runs[1] = {{1, ~std::uint64_t{0}}}; }));
  EXPECT_FALSE(with([](RecordedRegion& r) { r.flat = RecordedRegion::Stretch{3, 2}; }));
  EXPECT_FALSE(with([](RecordedRegion& r) { r.flat = RecordedRegion::Stretch{0, 25}; }));
}

}  // namespace
}  // namespace lading::ledger
