#include "ledger/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "ledger/ledger_for_tests.h"

namespace lading::ledger {
namespace {

using namespace planner::world;
using test::all_text;
using test::ledger_of;
using testing::HasSubstr;

Ledger loaded(Shape shape, std::vector<layout::Axis> mesh, std::vector<Cut> cuts) {
  World world;
  world.keys = {{"w", shape}, {"v", {3}}};
  world.tensors = {param("w", shape), param("v", {3})};
  world.mesh(std::move(mesh)).place("w", std::move(cuts));
  return ledger_of(world);
}

Ledger fsdp(std::uint64_t ranks) { return loaded({12, 8}, {{"dp", ranks}}, {shard(0, 0)}); }

// As if the rank's memory of `w` were another one.
Ledger damaged(Ledger ledger, std::uint64_t rank) {
  for (Record& record : ledger.records) {
    if (record.rank == rank && ledger.tensors[record.tensor].name == "w") record.digest->lanes[0] += 5;
  }
  return ledger;
}

TEST(LedgerCompare, R62_LoadsInAnyTwoLayoutsAreEqual) {
  const std::vector<Ledger> loads = {
      fsdp(1),
      fsdp(4),
      fsdp(5),
      loaded({12, 8}, {{"dp", 3}, {"tp", 2}}, {shard(1, 1), shard(0, 0)}),
      loaded({12, 8}, {{"r", 2}, {"dp", 4}}, {shard(1, 0)}),
      loaded({12, 8}, {{"dp", 5}}, {flat({0})}),
      loaded({12, 8}, {{"tp", 3}}, {strided(0, 0, 2)}),
  };
  for (const Ledger& a : loads) {
    for (const Ledger& b : loads) {
      const Comparison found = compare(a, b);
      EXPECT_EQ(found.tensors_equal, 2U) << all_text(found.differences);
      EXPECT_TRUE(found.differences.empty());
      EXPECT_TRUE(found.not_compared.empty());
    }
  }
}

TEST(LedgerCompare, R62_ADifferenceIsNarrowedToRowsAndRanks) {
  const Comparison found = compare(fsdp(2), damaged(fsdp(4), 2));
  ASSERT_EQ(found.differences.size(), 1U);
  EXPECT_EQ(found.tensors_equal, 1U);
  const std::string text = all_text(found.differences);
  EXPECT_THAT(text, HasSubstr("rows 6 to 11: rank 1 of the first load and ranks 2, 3 of the second"));
}

TEST(LedgerCompare, EqualPartsAreNarrowedToThatPart) {
  const std::string text = all_text(compare(damaged(fsdp(4), 3), fsdp(4)).differences);
  EXPECT_THAT(text, HasSubstr("rows 9 to 11: rank 3 of the first load and rank 3 of the second"));
}

TEST(LedgerCompare, FlatPartsAreNarrowedToTheirRows) {
  const Ledger flat4 = loaded({12, 8}, {{"dp", 4}}, {flat({0})});
  EXPECT_THAT(all_text(compare(flat4, damaged(flat4, 1)).differences), HasSubstr("rows 3 to 5: rank 1 of"));
}

TEST(LedgerCompare, ReplicasThatDifferAreTold) {
  const Ledger hsdp = loaded({12, 8}, {{"r", 2}, {"dp", 2}}, {shard(0, 1)});
  EXPECT_THAT(all_text(compare(hsdp, damaged(hsdp, 3)).differences), HasSubstr("in the second load"));
}

TEST(LedgerCompare, OtherTensorsShapesAndDtypesAreDifferences) {
  Ledger other = fsdp(2);
  other.tensors[1].storage = DType::kBF16;
  other.tensors[0].name = "u";
  const std::string text = all_text(compare(fsdp(2), other).differences);
  EXPECT_THAT(text, HasSubstr("different shapes or dtypes"));
  EXPECT_THAT(text, HasSubstr("only the first load has the tensor"));
  EXPECT_THAT(text, HasSubstr("only the second load has the tensor"));
}

TEST(LedgerCompare, WithoutDigestsNothingIsCalledEqual) {
  Ledger none = fsdp(2);
  for (Record& record : none.records) record.digest.reset();
  const Comparison found = compare(none, fsdp(2));
  EXPECT_EQ(found.tensors_equal, 0U);
  EXPECT_EQ(found.not_compared.size(), 2U);
}

TEST(LedgerCompare, LedgersOfOneLoadsProcessesAreOneLoad) {
  std::vector<Ledger> parts;
  for (const std::uint64_t rank : {2U, 0U, 1U}) {
    Ledger part = fsdp(3);
    part.ranks = {rank};
    std::erase_if(part.records, [&](const Record& record) { return record.rank != rank; });
    parts.push_back(std::move(part));
  }
  const auto merged = merge(parts);
  ASSERT_TRUE(merged);
  EXPECT_EQ(*merged, fsdp(3));
  EXPECT_FALSE(merge({parts[0], parts[0]}));
  EXPECT_FALSE(merge({parts[0], fsdp(4)}));
  // A part alone: what it has is compared, and the rest is not called equal.
  const Comparison found = compare(parts[0], fsdp(3));
  EXPECT_TRUE(found.differences.empty());
  EXPECT_EQ(found.not_compared.size(), 1U);
}

}  // namespace
}  // namespace lading::ledger
