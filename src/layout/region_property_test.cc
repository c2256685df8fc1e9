// Random meshes, shapes and cuts, over all ranks: region_of() holds what cutting lists by hand gives, and the
// ranks together hold each element exactly as often as the axes that no cut uses have ranks.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "layout/brute_force_for_tests.h"
#include "layout/layout.h"
#include "layout/region.h"
#include "support/sanitizers.h"

namespace lading::layout {
namespace {

struct Case {
  Mesh mesh;
  Shape shape;
  std::vector<Cut> cuts;
};

class Generator {
 public:
  explicit Generator(std::uint64_t seed) : random_(seed) {}

  std::uint64_t number(std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(random_);
  }

  Case next() {
    Case c;
    c.mesh = mesh();
    c.shape = shape();
    std::vector<std::size_t> free(c.mesh.axes().size());
    std::iota(free.begin(), free.end(), std::size_t{0});
    std::shuffle(free.begin(), free.end(), random_);
    const std::uint64_t ending = number(0, 5);
    if (ending != 1) {
      while (free.size() > 1 || (ending != 0 && !free.empty())) {
        if (number(0, 3) == 0) break;
        c.cuts.push_back(cut(c, free));
        if (c.cuts.back().axes.empty()) c.cuts.pop_back();
      }
    }
    if (!free.empty() && ending <= 1) c.cuts.push_back(ending == 0 ? flat(c, free) : flat_group(c, free));
    return c;
  }

 private:
  Mesh mesh() {
    std::vector<Axis> axes(number(0, 3));
    for (std::size_t i = 0; i < axes.size(); ++i) axes[i] = {std::string(1, static_cast<char>('a' + i)), number(1, 4)};
    return Mesh(std::move(axes));
  }

  Shape shape() {
    std::vector<std::uint64_t> dims(number(0, 3));
    for (std::uint64_t& dim : dims) dim = number(number(0, 7) == 0 ? 0 : 1, dims.size() == 1 ? 40 : 9);
    return Shape(std::move(dims));
  }

  std::vector<std::size_t> take(std::vector<std::size_t>& free) {
    const std::uint64_t count = free.size() > 1 && number(0, 4) == 0 ? 2 : 1;
    std::vector<std::size_t> taken;
    for (std::uint64_t i = 0; i < count; ++i) {
      taken.push_back(free.back());
      free.pop_back();
    }
    return taken;
  }

  Cut cut(const Case& c, std::vector<std::size_t>& free) {
    Cut cut;
    cut.axes = take(free);
    const std::uint64_t kind = number(0, 7);
    if (c.shape.rank() == 0 || kind == 0) {
      cut.kind = CutKind::kOwner;
      const std::uint64_t group = c.mesh.group_size(cut.axes);
      for (std::uint64_t i = 0; i < group; ++i) {
        if (number(0, 1) == 0) cut.owners.push_back(i);
      }
      if (cut.owners.empty()) cut.owners.push_back(number(0, group - 1));
      return cut;
    }
    cut.dim = number(0, c.shape.rank() - 1);
    if (kind < 4) {
      cut.kind = CutKind::kStridedShard;
      cut.split_factor = number(1, 6);
    }
    return cut;
  }

  Cut flat(const Case& c, std::vector<std::size_t>& free) {
    Cut cut;
    cut.kind = CutKind::kFlat;
    cut.axes = take(free);
    cut.pad_multiple = number(0, 3) * c.mesh.group_size(cut.axes);
    return cut;
  }

  Cut flat_group(const Case& c, std::vector<std::size_t>& free) {
    Cut cut;
    cut.kind = CutKind::kFlatGroup;
    cut.axes = take(free);
    cut.flat_parameter = "unit";
    cut.group_offset_elems = number(0, 20);
    cut.group_elems = cut.group_offset_elems + c.shape.num_elems().value() + number(0, 20);
    return cut;
  }

  std::mt19937_64 random_;
};

/// How many ranks hold a copy of each element: those that differ only in axes without a cut, times the owners.
std::uint64_t copies(const Case& c) {
  std::uint64_t count = c.mesh.ranks();
  for (const Cut& cut : c.cuts) {
    count /= c.mesh.group_size(cut.axes);
    if (cut.kind == CutKind::kOwner) count *= cut.owners.size();
  }
  return count;
}

bool is_canonical(const std::vector<Run>& runs) {
  for (std::size_t i = 1; i < runs.size(); ++i) {
    if (runs[i].begin <= runs[i - 1].begin + runs[i - 1].size) return false;
  }
  return true;
}

struct Tally {
  std::uint64_t cases = 0;
  std::uint64_t ranks = 0;
  std::uint64_t empty_ranks = 0;
  std::uint64_t absent_ranks = 0;
  std::uint64_t padded_ranks = 0;
  std::map<CutKind, std::uint64_t> kinds;
};

void check(const Case& c, Tally& tally) {
  ASSERT_TRUE(check_cuts(c.shape, c.cuts, c.mesh).empty()) << check_cuts(c.shape, c.cuts, c.mesh).front().text();
  std::vector<std::uint64_t> seen(c.shape.num_elems().value(), 0);
  for (std::uint64_t rank = 0; rank < c.mesh.ranks(); ++rank) {
    const Region region = region_of(c.shape, c.cuts, c.mesh, rank);
    const auto expected = brute_force::memory(c.shape, c.cuts, c.mesh, rank);
    const auto found = brute_force::memory(region, c.shape);
    ASSERT_EQ(region.present, expected.has_value());
    ASSERT_EQ(found, expected) << c.shape.text() << " on " << c.mesh.text() << " rank " << rank;
    std::uint64_t owned = 0;
    for (const auto& element : found.value_or(brute_force::Memory())) {
      if (!element) continue;
      ++owned;
      ++seen.at(*element);
    }
    ASSERT_EQ(region.owned_elems(), owned);
    ASSERT_EQ(region.buffer_elems, expected ? expected->size() : 0);
    ASSERT_EQ(region.runs.size(), c.shape.rank());
    for (const auto& runs : region.runs) ASSERT_TRUE(is_canonical(runs));
    ++tally.ranks;
    if (region.present && owned == 0 && !seen.empty()) ++tally.empty_ranks;
    if (!region.present) ++tally.absent_ranks;
    if (owned < region.buffer_elems) ++tally.padded_ranks;
  }
  for (const std::uint64_t count : seen) ASSERT_EQ(count, copies(c)) << c.shape.text() << " on " << c.mesh.text();
  for (const Cut& cut : c.cuts) ++tally.kinds[cut.kind];
  ++tally.cases;
}

TEST(RegionProperty, R11_R53_R55_R56_R59_RanksTileEveryTensorAndAgreeWithLists) {
  constexpr std::uint64_t kCases = test::random_cases(200'000);
  Generator generator(20'261'115);
  Tally tally;
  for (std::uint64_t i = 0; i < kCases; ++i) {
    ASSERT_NO_FATAL_FAILURE(check(generator.next(), tally)) << "case " << i;
  }
  RecordProperty("ranks", static_cast<int>(tally.ranks));
  // The generator reaches what it is for.
  EXPECT_EQ(tally.cases, kCases);
  EXPECT_GT(tally.empty_ranks, kCases / 100);
  EXPECT_GT(tally.absent_ranks, kCases / 100);
  EXPECT_GT(tally.padded_ranks, kCases / 100);
  EXPECT_EQ(tally.kinds.size(), 5U);
  for (const auto& [kind, count] : tally.kinds) EXPECT_GT(count, kCases / 50) << static_cast<int>(kind);
}

TEST(RegionProperty, R53_EvenIsRefusedExactlyWhereSomeRankIsUneven) {
  Generator generator(7);
  std::uint64_t refused = 0;
  std::uint64_t accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    Case c = generator.next();
    const std::size_t last = c.cuts.size() - 1;
    if (c.cuts.empty() || c.cuts[last].kind != CutKind::kShard) continue;
    bool even = true;
    const std::vector<Cut> before(c.cuts.begin(), c.cuts.end() - 1);
    const std::uint64_t group = c.mesh.group_size(c.cuts[last].axes);
    for (std::uint64_t rank = 0; rank < c.mesh.ranks(); ++rank) {
      const Region region = region_of(c.shape, before, c.mesh, rank);
      even = even && (!region.present || region.local_shape[c.cuts[last].dim] % group == 0);
    }
    c.cuts[last].even = true;
    const Errors errors = check_cuts(c.shape, c.cuts, c.mesh);
    ASSERT_EQ(errors.empty(), even) << "case " << i;
    ++(even ? accepted : refused);
  }
  EXPECT_GT(refused, 1000U);
  EXPECT_GT(accepted, 1000U);
}

TEST(RegionProperty, R53_EvenIsJudgedRightOverLongAxes) {
  Generator generator(8);
  std::uint64_t refused = 0;
  constexpr std::uint64_t kCases = 30'000;
  for (std::uint64_t i = 0; i < kCases; ++i) {
    const Mesh mesh({{"a", generator.number(1, 40)}, {"b", generator.number(2, 3)}});
    const Shape shape{generator.number(0, 900)};
    Cut first;
    first.kind = CutKind::kStridedShard;
    first.axes = {0};
    first.split_factor = generator.number(1, 8);
    Cut second;
    second.axes = {1};
    second.even = true;
    bool even = true;
    for (std::uint64_t rank = 0; rank < mesh.ranks(); ++rank) {
      even = even && region_of(shape, {first}, mesh, rank).local_shape[0] % mesh.axes()[1].size == 0;
    }
    ASSERT_EQ(check_cuts(shape, {first, second}, mesh).empty(), even) << shape.text() << " on " << mesh.text();
    if (!even) ++refused;
  }
  EXPECT_GT(refused, kCases / 10);
  EXPECT_LT(refused, kCases - kCases / 50);
}

}  // namespace
}  // namespace lading::layout
