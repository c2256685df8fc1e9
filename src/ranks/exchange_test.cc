#include "ranks/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "ranks/thread_bulk_for_tests.h"

namespace lading::ranks {
namespace {

using namespace std::chrono_literals;

struct Wish {
  std::uint64_t owner = 0;
  std::vector<std::uint64_t> members;
  std::uint64_t bytes = 0;
};

// A list that all ranks share; each has memory for what it is a member of, and what it owns has a content.
class World {
 public:
  World(std::vector<Wish> wishes, std::uint64_t ranks) : wishes_(std::move(wishes)), memory_(ranks) {
    for (std::size_t w = 0; w < wishes_.size(); ++w) {
      for (const std::uint64_t rank : wishes_[w].members) {
        auto& bytes = memory_[rank][w];
        bytes.assign(wishes_[w].bytes, std::byte{0});
        if (rank == wishes_[w].owner) fill(bytes, w);
      }
    }
  }

  [[nodiscard]] std::vector<Handover> handovers_of(std::uint64_t rank) {
    std::vector<Handover> handovers;
    for (auto& [w, bytes] : memory_[rank]) {
      handovers.push_back(
          {wishes_[w].owner, std::make_shared<const std::vector<std::uint64_t>>(wishes_[w].members), bytes});
    }
    return handovers;
  }

  /// On all ranks, a thread each.
  std::vector<ExchangeOutcome> run(BulkPost& post, const ExchangeOptions& common) {
    std::vector<ExchangeOutcome> outcomes(memory_.size());
    std::vector<std::jthread> threads;
    for (std::uint64_t rank = 0; rank < memory_.size(); ++rank) {
      threads.emplace_back([&, rank] {
        ThreadBulk bulk(post, rank);
        ExchangeOptions options = common;
        options.rank = rank;
        const auto handovers = handovers_of(rank);
        outcomes[rank] = exchange(bulk, handovers, options);
        if (bulk.most_at_once() > most_at_once) most_at_once = bulk.most_at_once();
      });
    }
    threads.clear();
    return outcomes;
  }

  [[nodiscard]] bool is_right() const {
    for (const auto& of_rank : memory_) {
      for (const auto& [w, bytes] : of_rank) {
        std::vector<std::byte> expected(bytes.size());
        fill(expected, w);
        if (bytes != expected) return false;
      }
    }
    return true;
  }

  std::atomic<std::size_t> most_at_once = 0;

 private:
  static void fill(std::vector<std::byte>& bytes, std::size_t wish) {
    std::mt19937_64 dice(wish + 1);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(dice());
  }

  std::vector<Wish> wishes_;
  std::vector<std::map<std::size_t, std::vector<std::byte>>> memory_;  // by rank and wish
};

std::vector<Wish> random_wishes(std::uint64_t seed, std::uint64_t ranks, std::size_t count) {
  std::mt19937_64 dice(seed);
  std::vector<Wish> wishes;
  while (wishes.size() < count) {
    Wish wish;
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
      if (dice() % 3 > 0) wish.members.push_back(rank);
    }
    if (wish.members.size() < 2) continue;
    wish.owner = wish.members[dice() % wish.members.size()];
    wish.bytes = dice() % 5 == 0 ? 0 : dice() % 300;
    wishes.push_back(wish);
  }
  return wishes;
}

ExchangeOptions small_blocks() {
  ExchangeOptions options;
  options.block_bytes = 64;
  options.patience = 50ms;
  return options;
}

TEST(Exchange, EveryMemberGetsWhatTheOwnerHas) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    World world(random_wishes(seed, 5, 40), 5);
    BulkPost post;
    for (const ExchangeOutcome& outcome : world.run(post, small_blocks())) {
      ASSERT_TRUE(outcome.result) << outcome.result.error().text();
      EXPECT_TRUE(outcome.memory_is_free);
    }
    ASSERT_TRUE(world.is_right()) << "seed " << seed;
    EXPECT_TRUE(post.is_tidy());
    EXPECT_LE(world.most_at_once, 32U);
  }
}

// Far more on the way than may be under way at once, and in directions that cross.
TEST(Exchange, RanksDoNotWaitForEachOther) {
  std::vector<Wish> wishes;
  for (std::uint64_t i = 0; i < 300; ++i) wishes.push_back({i < 150 ? i % 2 : 1 - i % 2, {0, 1, 2}, 64 * 5});
  World world(wishes, 3);
  BulkPost post;
  for (const ExchangeOutcome& outcome : world.run(post, small_blocks())) EXPECT_TRUE(outcome.result);
  EXPECT_TRUE(world.is_right());
  EXPECT_EQ(world.most_at_once, 32U);
}

TEST(Exchange, NothingToDoIsDone) {
  BulkPost post;
  ThreadBulk bulk(post, 0);
  EXPECT_TRUE(exchange(bulk, {}, small_blocks()).result);
}

TEST(Exchange, ProgressIsToldAndGrows) {
  World world({{0, {0, 1}, 1000}}, 2);
  BulkPost post;
  std::atomic<std::uint64_t> most = 0;
  ExchangeOptions options = small_blocks();
  options.on_progress = [&](std::uint64_t bytes) { most = std::max<std::uint64_t>(most, bytes); };
  world.run(post, options);
  EXPECT_EQ(most, 1000U);
}

TEST(Exchange, WhoIsToldToStopStopsAndTheMemoryIsFree) {
  World world({{0, {0, 1}, 1000}}, 2);  // and rank 0 never comes
  BulkPost post;
  ThreadBulk bulk(post, 1);
  ExchangeOptions options = small_blocks();
  options.rank = 1;
  int asked = 0;
  options.is_cancelled = [&] { return ++asked > 3; };
  const auto handovers = world.handovers_of(1);
  const ExchangeOutcome outcome = exchange(bulk, handovers, options);
  ASSERT_FALSE(outcome.result);
  EXPECT_EQ(outcome.result.error().code, Code::kCancelled);
  EXPECT_TRUE(outcome.memory_is_free);
}

TEST(Exchange, MemoryThatIsStillInUseIsTold) {
  World world({{0, {0, 1}, 100}}, 2);
  BulkPost post;
  post.hangs = [](const BulkPost::Pair&) { return true; };
  ThreadBulk bulk(post, 1);
  ExchangeOptions options = small_blocks();
  options.rank = 1;
  options.is_cancelled = [] { return true; };
  const auto handovers = world.handovers_of(1);
  const ExchangeOutcome outcome = exchange(bulk, handovers, options);
  EXPECT_FALSE(outcome.result);
  EXPECT_FALSE(outcome.memory_is_free);
}

}  // namespace
}  // namespace lading::ranks
