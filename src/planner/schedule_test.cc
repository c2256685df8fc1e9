// Reads of transfers made by hand, and of random ones against a verdict that looks at every byte.
#include "planner/schedule.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "checker/check_naive_reads_for_tests.h"
#include "support/loop_begins.h"

namespace lading::planner {
namespace {

// One U8 source of 1000 bytes at the start of a file; one U8 tensor per list of transfers, on the CPU.
Plan plan_of(std::uint64_t gap_bytes, std::uint64_t joined_bytes) {
  Plan plan;
  plan.files = {{"f", 1'000'000, 0}};
  plan.sources = {{"k", 0, {0, 1'000'000}, DType::kU8, Shape({1'000'000})}};
  plan.statements.resize(4);
  for (Statement& s : plan.statements) s.storage = DType::kU8;
  plan.read_limits = {{gap_bytes}, joined_bytes};
  return plan;
}

RankPlan rank_with(std::vector<std::vector<Transfer>> lists) {
  RankPlan rank;
  for (std::uint32_t d = 0; d < lists.size(); ++d) {
    Destination& destination = rank.destinations.emplace_back();
    destination.statement = StatementId(d);
    destination.device = "cpu";
    destination.transfers = std::move(lists[d]);
  }
  return rank;
}

Transfer run(std::uint64_t from, std::uint64_t elems, std::vector<ByteLoop> loops = {}) {
  return {0, from, 0, elems, std::move(loops), 0};
}

// "begin+size" of each read, with "xCOUNT/STRIDE" for rows and "(N)" for N transfers.
std::string reads_of(const Plan& plan, RankPlan rank) {
  schedule_reads(plan, rank);
  std::string text;
  std::uint64_t bytes = 0;
  for (const Read& read : rank.reads) {
    if (!text.empty()) text += " ";
    text += std::to_string(read.begin_bytes) + "+" + std::to_string(read.size_bytes);
    if (read.count > 1) text += "x" + std::to_string(read.count) + "/" + std::to_string(read.stride_bytes);
    if (read.transfers.size() > 1) text += "(" + std::to_string(read.transfers.size()) + ")";
    bytes += read.total_bytes();
  }
  EXPECT_EQ(rank.read_bytes, bytes);
  EXPECT_TRUE(checker::naive::ReadsVerdict(plan, rank).good()) << text;
  return text;
}

TEST(Schedule, RowsAreReadThroughWhereTheirGapsAreSmallAndThereIsRoom) {
  const std::vector<std::vector<Transfer>> rows = {{run(0, 6, {{4, 10, 6}})}};
  EXPECT_EQ(reads_of(plan_of(4, 36), rank_with(rows)), "0+36");
  EXPECT_EQ(reads_of(plan_of(4, 20), rank_with(rows)), "0+16x2/20");
  EXPECT_EQ(reads_of(plan_of(4, 30), rank_with(rows)), "0+26 30+6") << "three rows, and the one that is left";
  EXPECT_EQ(reads_of(plan_of(3, 36), rank_with(rows)), "0+6x4/10");
}

TEST(Schedule, WhatHasNoGapsIsOneReadOfAnyLength) {
  EXPECT_EQ(reads_of(plan_of(0, 8), rank_with({{run(100, 10'000)}})), "100+10000");
  EXPECT_EQ(reads_of(plan_of(0, 8), rank_with({{run(0, 1, {{50, 1, 40}, {40, 50, 1}})}})), "0+2000") << "transposed";
}

TEST(Schedule, RowsOfRowsAreSeveralReads) {
  EXPECT_EQ(reads_of(plan_of(0, 8), rank_with({{run(0, 2, {{3, 100, 4}, {2, 10, 2}})}})),
            "0+2x2/10 100+2x2/10 200+2x2/10");
  EXPECT_EQ(reads_of(plan_of(0, 8), rank_with({{run(0, 2, {{3, 20, 2}, {2, 10, 6}})}})), "0+2x6/10")
      << "one after the other in the file, whatever the order in memory";
}

TEST(Schedule, SmallNeighboursShareARead) {
  const auto two = [](std::uint64_t begin, std::uint64_t bytes) {
    return rank_with({{run(0, bytes)}, {run(begin, bytes)}});
  };
  EXPECT_EQ(reads_of(plan_of(4, 100), two(14, 10)), "0+24(2)");
  EXPECT_EQ(reads_of(plan_of(3, 100), two(14, 10)), "0+10 14+10");
  EXPECT_EQ(reads_of(plan_of(4, 23), two(14, 10)), "0+10 14+10") << "no slot holds both";
  EXPECT_EQ(reads_of(plan_of(4, 200'000), two(40'000, 40'000)), "0+40000 40000+40000") << "each in place";
  EXPECT_EQ(reads_of(plan_of(4, 200'000), two(30'000, 40'000)), "0+70000(2)") << "they share bytes";
}

TEST(Schedule, EqualBytesAreReadOnce) {
  EXPECT_EQ(reads_of(plan_of(0, 8), rank_with({{run(0, 50'000)}, {run(0, 50'000)}})), "0+50000(2)");
  EXPECT_EQ(reads_of(plan_of(0, 8), rank_with({{run(0, 2, {{9, 100, 2}})}, {run(0, 2, {{9, 100, 5}})}})),
            "0+2x9/100(2)");
}

TEST(Schedule, OtherDevicesAndComparisonsHaveReadsOfTheirOwn) {
  RankPlan rank = rank_with({{run(0, 8)}, {run(8, 8)}});
  rank.destinations[1].device = "cuda:0";
  EXPECT_EQ(reads_of(plan_of(4, 100), rank), "0+8 8+8");
  rank = rank_with({{run(0, 8)}});
  rank.destinations[0].comparisons = {{run(8, 8)}};
  EXPECT_EQ(reads_of(plan_of(4, 100), rank), "0+8 8+8");
}

// Which byte of the file goes to which byte of memory.
std::multimap<std::uint64_t, std::uint64_t> moves_of(const std::vector<Transfer>& transfers) {
  std::multimap<std::uint64_t, std::uint64_t> moves;
  for (const Transfer& t : transfers) {
    for (const auto& [from, to] : test::loop_begins(t.source_begin_bytes, t.target_begin_bytes, t.loops)) {
      for (std::uint64_t b = 0; b < t.run_elems; ++b) moves.emplace(from + b, to + b);
    }
  }
  return moves;
}

TEST(Schedule, R11_R64_RandomBoxesAreReadWholeAndMoveAsBefore) {
  std::mt19937_64 random(7);
  const auto below = [&](std::uint64_t n) { return random() % n; };
  std::size_t split = 0;
  for (int round = 0; round < 4000; ++round) {
    const Plan plan = plan_of(below(12), 1 + below(60));
    std::vector<std::vector<Transfer>> lists(1 + below(3));
    for (auto& list : lists) {
      // A box of a row-major array, its dims in any order in memory.
      std::uint64_t stride = 1;
      Transfer t = run(0, 1 + below(5));
      stride = t.run_elems + below(6);
      std::uint64_t target = t.run_elems;
      for (std::uint64_t dims = below(4); dims > 0; --dims) {
        const std::uint64_t count = 1 + below(5);
        t.loops.push_back({count, stride, target});
        stride *= count + below(3);
        target *= count;
      }
      std::shuffle(t.loops.begin(), t.loops.end(), random);
      t.source_begin_bytes = below(40);
      list = {t};
    }
    RankPlan rank = rank_with(lists);
    schedule_reads(plan, rank);
    ASSERT_TRUE(checker::naive::ReadsVerdict(plan, rank).good()) << "round " << round;
    for (std::size_t d = 0; d < lists.size(); ++d) {
      const std::vector<Transfer>& transfers = rank.destinations[DestinationId(d)].transfers;
      ASSERT_EQ(moves_of(transfers), moves_of(lists[d])) << "round " << round;
      split += transfers.size() - 1;
    }
  }
  EXPECT_GT(split, 1000U);
}

}  // namespace
}  // namespace lading::planner
