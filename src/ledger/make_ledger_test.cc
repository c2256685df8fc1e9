#include <gtest/gtest.h>

#include <algorithm>

#include "ledger/ledger_for_tests.h"

namespace lading::ledger {
namespace {

using namespace planner::world;
using test::ledger_of;

const Record* find(const Ledger& ledger, std::uint64_t rank, std::string_view name, std::string_view slot = "") {
  for (const Record& record : ledger.records) {
    if (record.rank == rank && ledger.tensors[record.tensor].name == name && record.slot == slot) return &record;
  }
  ADD_FAILURE() << "no record of " << name << " on " << rank;
  return nullptr;
}

std::string text_of(const std::vector<TakenBytes>& reads) {
  std::string text;
  for (const TakenBytes& taken : reads) {
    text += fmt::format("[{} {} {}", taken.file, taken.begin_bytes, taken.size_bytes);
    for (const auto& loop : taken.loops) text += fmt::format(" {}x{}", loop.count, loop.stride_bytes);
    text += "]";
  }
  return text;
}

World one_key(Shape shape, std::vector<Cut> cuts) {
  World world;
  world.keys = {{"w", shape}};
  world.tensors = {param("w", std::move(shape))};
  world.mesh({{"tp", 2}}).place("w", std::move(cuts));
  return world;
}

TEST(MakeLedger, R1_HasARecordOfEveryTensorOnEveryRank) {
  const World world = test::world_of_everything();
  const Ledger ledger = ledger_of(world);
  EXPECT_TRUE(ledger.complete);
  EXPECT_EQ(ledger.ranks, (std::vector<std::uint64_t>{0, 1, 2, 3}));
  // One each, and the second slot of one of them.
  EXPECT_EQ(ledger.records.size(), 4 * (world.tensors.size() + 1));
  const Record* built = find(ledger, 2, "built");
  EXPECT_EQ(built->provenance, Provenance::kFile);
  EXPECT_EQ(built->owned_elems, 30U);
  EXPECT_EQ(built->bytes, 120U);
  EXPECT_EQ(cast_text(*built, DType::kF32), "BF16 -> F32");
  EXPECT_EQ(cast_text(*find(ledger, 0, "tied"), DType::kF32), "");
  EXPECT_EQ(find(ledger, 0, "random")->provenance, Provenance::kRandom);
  EXPECT_EQ(find(ledger, 0, "kept")->digest, std::nullopt);
  EXPECT_TRUE(find(ledger, 0, "kept")->complete);
}

TEST(MakeLedger, R38_SaysWhatBecameOfEveryKey) {
  const Ledger ledger = ledger_of(test::world_of_everything());
  EXPECT_EQ(ledger.ignored_keys, (std::vector<std::pair<std::string, std::string>>{{"old", "legacy"}}));
  const Tensor& built = ledger.tensors[*ledger.find("built")];
  ASSERT_EQ(built.sources.size(), 2U);
  EXPECT_EQ(built.sources[0].key, "a");
  EXPECT_EQ(built.sources[1].key, "b");
  EXPECT_EQ(ledger.files[built.sources[0].file].name, "model-0.safetensors");
}

TEST(MakeLedger, AnAliasHasNoBytesAndTheSameDigest) {
  const Ledger ledger = ledger_of(test::world_of_everything());
  const Record* tied = find(ledger, 1, "tied");
  const Record* twin = find(ledger, 1, "twin");
  EXPECT_EQ(twin->provenance, Provenance::kAlias);
  EXPECT_EQ(twin->alias_of, "tied");
  EXPECT_EQ(twin->bytes, 0U);
  EXPECT_EQ(twin->written_bytes, 0U);
  EXPECT_TRUE(twin->reads.empty());
  EXPECT_EQ(twin->digest, tied->digest);
  EXPECT_EQ(twin->region, tied->region);
}

TEST(MakeLedger, ReadsAreExactAndShort) {
  EXPECT_EQ(text_of(find(ledger_of(one_key({8, 4}, {})), 0, "w")->reads), "[0 100 128]");
  EXPECT_EQ(text_of(find(ledger_of(one_key({8, 4}, {shard(0, 0)})), 1, "w")->reads), "[0 164 64]");
  EXPECT_EQ(text_of(find(ledger_of(one_key({8, 4}, {shard(0, 1)})), 1, "w")->reads), "[0 108 8 8x16]");
  EXPECT_EQ(text_of(find(ledger_of(one_key({2, 3, 4, 5}, {shard(0, 2)})), 1, "w")->reads), "[0 140 40 6x80]");
  EXPECT_EQ(text_of(find(ledger_of(one_key({7}, {flat({0})})), 1, "w")->reads), "[0 116 12]");
}

TEST(MakeLedger, ATransposeTakesEachByteOnce) {
  World world = one_key({6, 4}, {shard(0, 0)});
  world.tensors = {param("t", {4, 6})};
  world.layout.rules[0].pattern = "t";
  world.build("t", mapping::Expression::permute(mapping::Expression::source("w"), {1, 0}));
  EXPECT_EQ(text_of(find(ledger_of(world), 1, "t")->reads), "[0 108 8 6x16]");
}

TEST(MakeLedger, R11_IncompleteIsSaidOfTheRecordItsAliasAndTheLedger) {
  const World world = test::world_of_everything();
  const auto plan = world.plan();
  ASSERT_TRUE(plan);
  LedgerFacts facts = test::good_facts(*plan);
  for (DestinationFacts& found : facts.destinations) {
    const auto& d = plan->ranks[found.rank].destinations[found.destination];
    if (plan->statements[d.statement].name == "tied" && found.rank == 3) found.written_bytes -= 4;
  }
  const Ledger ledger = make_ledger(*plan, facts);
  EXPECT_FALSE(ledger.complete);
  EXPECT_FALSE(find(ledger, 3, "tied")->complete);
  EXPECT_FALSE(find(ledger, 3, "twin")->complete);
  EXPECT_TRUE(find(ledger, 2, "tied")->complete);
}

TEST(MakeLedger, R11_ALoadThatFailedIsNotCompleteWhateverItWrote) {
  const World world = test::world_of_everything();
  const auto plan = world.plan();
  ASSERT_TRUE(plan);
  LedgerFacts facts = test::good_facts(*plan);
  facts.has_failed = true;
  const Ledger ledger = make_ledger(*plan, facts);
  EXPECT_FALSE(ledger.complete);
  EXPECT_TRUE(find(ledger, 3, "tied")->complete);
}

TEST(MakeLedger, R3_WhatNobodySpeaksOfIsNotComplete) {
  const auto plan = one_key({8}, {}).plan();
  ASSERT_TRUE(plan);
  const Ledger ledger = make_ledger(*plan, {});
  EXPECT_FALSE(ledger.complete);
  EXPECT_EQ(ledger.records[0].written_bytes, 0U);
  EXPECT_EQ(ledger.records[0].expected_bytes, 32U);
}

TEST(MakeLedger, AStageHasTheMemoryUnderItsOwnName) {
  World world;
  world.keys = {{"embed", {4, 2}}};
  world.tensors = {param("embed", {4, 2}), param("head", {4, 2})};
  world.ties = {{"embed", "head"}};
  world.mesh({{"pp", 2}}).place("embed", {owner(0, {0})}).place("head", {owner(0, {1})});
  const Ledger ledger = ledger_of(world);
  ASSERT_EQ(ledger.records.size(), 2U);
  const Record* head = find(ledger, 1, "head");
  EXPECT_EQ(head->provenance, Provenance::kFile);
  EXPECT_EQ(head->bytes, 32U);
  EXPECT_EQ(ledger.tensors[head->tensor].alias_of, "embed");
}

}  // namespace
}  // namespace lading::ledger
