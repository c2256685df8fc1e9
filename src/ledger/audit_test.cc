#include "ledger/audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "ledger/ledger_for_tests.h"

namespace lading::ledger {
namespace {

using namespace planner::world;
using test::all_text;
using test::ledger_of;
using testing::HasSubstr;

World world_of(Shape shape, std::vector<layout::Axis> mesh, std::vector<Cut> cuts) {
  World world;
  world.keys = {{"w", shape}};
  world.tensors = {param("w", shape)};
  world.mesh(std::move(mesh)).place("w", std::move(cuts));
  return world;
}

device::Digest whole_digest(const Shape& shape) {
  return test::digest_of_elements(test::elements_of(RecordedRegion::whole(shape), shape), DType::kF32);
}

// The only slot of the only tensor.
SlotDigest slot_of(const Ledger& ledger) {
  const TensorDigests digests = tensor_digests(ledger);
  EXPECT_EQ(digests.size(), 1U);
  EXPECT_EQ(digests.front().size(), 1U);
  return digests.front().front();
}

void expect_whole(const World& world, std::size_t shares) {
  const Ledger ledger = ledger_of(world);
  const SlotDigest slot = slot_of(ledger);
  EXPECT_EQ(slot.shares.size(), shares);
  EXPECT_EQ(slot.coverage, Coverage::kWhole);
  ASSERT_TRUE(slot.digest);
  EXPECT_EQ(slot.digest->text(), whole_digest(ledger.tensors[0].shape).text());
  EXPECT_TRUE(disagreements(ledger, tensor_digests(ledger)).empty());
  EXPECT_TRUE(check_records(ledger).errors.empty()) << all_text(check_records(ledger).errors);
}

TEST(LedgerAudit, R62_DigestOfTheWholeDoesNotDependOnTheLayout) {
  expect_whole(world_of({6, 8}, {{"dp", 4}}, {}), 1);                       // replicas
  expect_whole(world_of({6, 8}, {{"r", 3}, {"dp", 4}}, {shard(1, 0)}), 4);  // HSDP, one rank empty
  expect_whole(world_of({12, 8}, {{"dp", 3}, {"tp", 2}}, {shard(1, 1), shard(0, 0)}), 6);
  expect_whole(world_of({12, 8}, {{"dp", 2}, {"tp", 3}}, {strided(0, 0, 3), shard(1, 0)}), 6);
  expect_whole(world_of({12, 8}, {{"tp", 3}}, {strided(0, 0, 2)}), 3);
  expect_whole(world_of({12, 8}, {{"dp", 4}, {"tp", 2}}, {shard(1, 1), flat({0})}), 8);
  expect_whole(world_of({}, {{"dp", 2}}, {}), 1);
  expect_whole(world_of({0, 4}, {{"dp", 2}}, {shard(0, 0)}), 1);
}

TEST(LedgerAudit, R56_PaddingIsNotInTheDigest) { expect_whole(world_of({15}, {{"dp", 4}}, {flat({0})}), 4); }

TEST(LedgerAudit, ReplicasAreOneShare) {
  const Ledger ledger = ledger_of(world_of({8, 8}, {{"r", 2}, {"dp", 2}}, {shard(1, 0)}));
  const SlotDigest slot = slot_of(ledger);
  ASSERT_EQ(slot.shares.size(), 2U);
  EXPECT_EQ(ranks_text(ledger, slot.shares[0].records), "ranks 0, 2");
  EXPECT_EQ(ranks_text(ledger, slot.shares[1].records), "ranks 1, 3");
}

TEST(LedgerAudit, ReplicasThatDifferAreNamed) {
  Ledger ledger = ledger_of(world_of({8, 8}, {{"r", 3}, {"dp", 2}}, {shard(1, 0)}));
  ledger.records[3].digest->lanes[0] ^= 1;
  const SlotDigest slot = slot_of(ledger);
  EXPECT_EQ(slot.coverage, Coverage::kWhole);
  EXPECT_FALSE(slot.digest);
  const Errors errors = disagreements(ledger, tensor_digests(ledger));
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors.front().code, Code::kValuesDiffer);
  EXPECT_EQ(errors.front().tensor, "w");
  EXPECT_THAT(errors.front().found, HasSubstr("on ranks 1, 5"));
  EXPECT_THAT(errors.front().found, HasSubstr("on rank 3"));
}

TEST(LedgerAudit, SomeRanksArePartial) {
  const World world = world_of({8, 8}, {{"r", 2}, {"dp", 4}}, {shard(1, 0)});
  const SlotDigest slot = slot_of(ledger_of(world, {0, 1, 2, 4, 6}));
  EXPECT_EQ(slot.coverage, Coverage::kPartial);
  EXPECT_FALSE(slot.digest);
  EXPECT_EQ(slot.shares.size(), 3U);
  // One of each pair of replicas is enough.
  EXPECT_EQ(slot_of(ledger_of(world, {0, 5, 2, 7})).coverage, Coverage::kWhole);
}

TEST(LedgerAudit, PartialFlatStretchesArePartial) {
  const World world = world_of({15}, {{"dp", 4}}, {flat({0})});
  EXPECT_EQ(slot_of(ledger_of(world, {0, 1, 2})).coverage, Coverage::kPartial);
  EXPECT_EQ(slot_of(ledger_of(world, {1, 2, 3})).coverage, Coverage::kPartial);
  EXPECT_EQ(slot_of(ledger_of(world, {0, 2, 3})).coverage, Coverage::kPartial);
}

// As many elements as the tensor has, but some twice and some not at all.
TEST(LedgerAudit, OverlapIsNotWhole) {
  Ledger ledger = ledger_of(world_of({8, 8}, {{"dp", 2}}, {shard(0, 0)}));
  ledger.records[1].region.runs = {{{0, 8}}, {{0, 4}}};
  EXPECT_EQ(slot_of(ledger).coverage, Coverage::kPartial);
  ledger = ledger_of(world_of({16}, {{"dp", 4}}, {flat({0})}));
  ledger.records[2].region.flat = RecordedRegion::Stretch{7, 11};
  EXPECT_EQ(slot_of(ledger).coverage, Coverage::kPartial);
}

TEST(LedgerAudit, AMissingDigestLeavesTheWholeUnknown) {
  Ledger ledger = ledger_of(world_of({8, 8}, {{"dp", 2}}, {shard(0, 0)}));
  ledger.records[1].digest.reset();
  const SlotDigest slot = slot_of(ledger);
  EXPECT_EQ(slot.coverage, Coverage::kWhole);
  EXPECT_FALSE(slot.digest);
}

TEST(LedgerAudit, SlotsThatDifferAreNamed) {
  Ledger ledger = ledger_of(test::world_of_everything());
  EXPECT_TRUE(disagreements(ledger, tensor_digests(ledger)).empty());
  for (Record& record : ledger.records) {
    if (record.slot == "secondary" && record.rank == 2) record.digest->lanes[1] += 1;
  }
  const Errors errors = disagreements(ledger, tensor_digests(ledger));
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors.front().tensor, "built");
  EXPECT_THAT(errors.front().message, HasSubstr("\"secondary\""));
}

TEST(LedgerAudit, R1_EveryTensorOfEveryRankHasARecord) {
  const Ledger good = ledger_of(test::world_of_everything());
  EXPECT_TRUE(check_records(good).errors.empty()) << all_text(check_records(good).errors);
  for (std::size_t i = 0; i < good.records.size(); ++i) {
    Ledger ledger = good;
    ledger.records.erase(ledger.records.begin() + static_cast<std::ptrdiff_t>(i));
    const Errors errors = check_records(ledger).errors;
    ASSERT_EQ(errors.size(), 1U) << i;
    EXPECT_EQ(errors.front().code, Code::kIncomplete);
    EXPECT_EQ(errors.front().tensor, good.tensors[good.records[i].tensor].name);
    EXPECT_EQ(errors.front().rank, static_cast<int>(good.records[i].rank));
    EXPECT_EQ(errors.front().rule, "R1");
  }
}

TEST(LedgerAudit, ARecordOfAnotherPartIsNoRecord) {
  Ledger ledger = ledger_of(world_of({8, 8}, {{"dp", 2}}, {shard(0, 0)}));
  std::swap(ledger.records[0].region, ledger.records[1].region);
  EXPECT_EQ(check_records(ledger).errors.size(), 2U);
}

TEST(LedgerAudit, R11_ARecordThatIsNotCompleteIsNamed) {
  Ledger ledger = ledger_of(test::world_of_everything());
  Record& record = ledger.records.front();
  record.written_bytes -= 1;
  record.complete = false;
  const Errors errors = check_records(ledger).errors;
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors.front().rule, "R11");
  EXPECT_EQ(errors.front().rank, 0);
}

TEST(LedgerAudit, R11_ALoadThatFailedIsSaid) {
  Ledger ledger = ledger_of(test::world_of_everything());
  EXPECT_TRUE(check_records(ledger).errors.empty());
  ledger.complete = false;
  const Errors errors = check_records(ledger).errors;
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors.front().code, Code::kIncomplete);
}

TEST(LedgerAudit, StagesHaveOnlyTheirTensors) {
  World world = world_of({8}, {{"pp", 2}}, {owner(0, {1})});
  const Ledger ledger = ledger_of(world);
  EXPECT_EQ(ledger.records.size(), 1U);
  EXPECT_EQ(slot_of(ledger).coverage, Coverage::kWhole);
  EXPECT_TRUE(check_records(ledger).errors.empty());
}

// A mesh of a thousand ranks is grouped without comparing each with each.
TEST(LedgerAudit, ManyShardsAreQuick) {
  World world = world_of({2048, 64}, {{"dp", 512}, {"tp", 2}}, {shard(1, 1), shard(0, 0)});
  const auto plan = world.plan();
  ASSERT_TRUE(plan);
  const Ledger ledger = make_ledger(*plan, {});
  EXPECT_EQ(slot_of(ledger).shares.size(), 1024U);
  EXPECT_EQ(slot_of(ledger).coverage, Coverage::kWhole);
}

}  // namespace
}  // namespace lading::ledger
