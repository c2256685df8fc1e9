#include "plan/replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "checker/check_random_plan_for_tests.h"
#include "support/planner_support.h"

namespace lading::plan {
namespace {

using namespace planner::world;
using ::testing::ElementsAre;

// What a destination holds, element by element: equal where ranks hold the same bytes. Nothing: no bytes at all.
struct Held {
  StatementId statement;
  std::string slot;
  std::vector<std::pair<int, std::uint64_t>> cells;

  friend auto operator<=>(const Held&, const Held&) = default;
};

std::optional<Held> held_by(const Plan& plan, std::uint64_t rank, const Destination& d) {
  const Statement& s = plan.statements[d.statement];
  for (const layout::Slot& slot : s.placement.slots) {
    if (slot.name != d.slot || d.owned_elems == 0) continue;
    Held held{d.statement, d.slot, {}};
    const auto memory = checker::naive::memory_of(s, slot, plan.mesh, rank);
    for (const auto& [cell, index] : memory->cells) {
      held.cells.emplace_back(static_cast<int>(cell), cell == checker::naive::Cell::kOwned ? index : 0);
    }
    return held;
  }
  return std::nullopt;
}

TEST(Replicas, R17_TheRanksThatHoldTheSameElements) {
  std::uint64_t sets_of_several = 0;
  std::uint64_t of_a_tie = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    const Plan plan = checker::naive::PlanMaker(seed).make_plan();
    std::map<Held, RankList> holders;
    for (const RankPlan& rank : plan.ranks) {
      for (const Destination& d : rank.destinations) {
        if (const auto held = held_by(plan, rank.rank, d)) holders[*held].push_back(rank.rank);
      }
    }
    Replicas replicas(plan);
    for (const RankPlan& rank : plan.ranks) {
      for (const Destination& d : rank.destinations) {
        const auto ranks = replicas.of(rank.rank, d);
        ASSERT_TRUE(std::is_sorted(ranks->begin(), ranks->end()));
        ASSERT_TRUE(std::binary_search(ranks->begin(), ranks->end(), rank.rank)) << "seed " << seed;
        const auto held = held_by(plan, rank.rank, d);
        if (!held) continue;
        RankList planned;  // the plan has not worked out all ranks
        for (const std::uint64_t other : *ranks) {
          if (rank_of(plan, other) != nullptr) planned.push_back(other);
        }
        ASSERT_EQ(planned, holders.at(*held))
            << "seed " << seed << ", rank " << rank.rank << ", " << plan.statements[d.statement].name;
        if (planned.size() > 1) ++sets_of_several;
        if (plan.statements[d.statement].provenance == Provenance::kAlias) ++of_a_tie;
      }
    }
  }
  EXPECT_GT(sets_of_several, 1000U);
  EXPECT_GT(of_a_tie, 10U);
}

World two_by_two() {
  World world{{{"cut", {4, 2}}, {"whole", {3}}}, {param("cut", {4, 2}), param("whole", {3})}};
  world.mesh({{"dp", 2}, {"tp", 2}}).place("cut", {shard(1, 0)});
  return world;
}

TEST(Replicas, RanksAlongAxesThatDoNotCutHoldTheSame) {
  const auto plan = two_by_two().plan();
  ASSERT_TRUE(plan) << verdict(plan);
  Replicas replicas(*plan);
  EXPECT_THAT(*replicas.of(1, *find(*plan, 1, "cut")), ElementsAre(1, 3));
  EXPECT_THAT(*replicas.of(2, *find(*plan, 2, "cut")), ElementsAre(0, 2));
  EXPECT_THAT(*replicas.of(2, *find(*plan, 2, "whole")), ElementsAre(0, 1, 2, 3));
}

TEST(Replicas, ListsAreShared) {
  const auto plan = two_by_two().plan();
  Replicas replicas(*plan);
  EXPECT_EQ(replicas.of(0, *find(*plan, 0, "whole")), replicas.of(3, *find(*plan, 3, "whole")));
  EXPECT_EQ(replicas.of(0, *find(*plan, 0, "cut")), replicas.of(2, *find(*plan, 2, "cut")));
}

TEST(Replicas, SeveralOwnersHoldTheSame) {
  World world{{{"w", {4}}}, {param("w", {4})}};
  world.mesh({{"pp", 4}, {"dp", 2}}).place("w", {owner(0, {3, 1}), shard(1, 0)});
  const auto plan = world.plan();
  Replicas replicas(*plan);
  EXPECT_THAT(*replicas.of(2, *find(*plan, 2, "w")), ElementsAre(2, 6));
  EXPECT_THAT(*replicas.of(7, *find(*plan, 7, "w")), ElementsAre(3, 7));
}

// Rank 1 has both names, and its memory goes by the first. What rank 2 holds under the other is nobody's replica.
TEST(Replicas, R49_OfATieClassTheNameOfTheMemoryCounts) {
  World world{{{"embed", {4}}}, {param("embed", {4}), param("head", {4})}, {{"embed", "head"}}};
  world.mesh({{"pp", 3}}).place("embed", {owner(0, {0, 1})}).place("head", {owner(0, {1, 2})});
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  Replicas replicas(*plan);
  EXPECT_THAT(*replicas.of(1, *find(*plan, 1, "head")), ElementsAre(0, 1));
  EXPECT_THAT(*replicas.of(2, *find(*plan, 2, "head")), ElementsAre(2));
}

TEST(Replicas, AMeshThatIsTooLargeIsNotListed) {
  World world{{{"w", {4}}}, {param("w", {4})}};
  world.mesh({{"dp", std::uint64_t{1} << 20}});
  const auto plan = world.plan({77});
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_THAT(*Replicas(*plan).of(77, *find(*plan, 77, "w")), ElementsAre(77));
}

using Owners = std::vector<Readers>;

// What is promised of owners: one of the ranks of the node that hold the bytes, the same one for all of them; and
// nobody where bytes are not handed over.
TEST(Owners, AllThatHoldTheSameNameTheSameReader) {
  std::uint64_t handed_over = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    const Plan plan = checker::naive::PlanMaker(seed).make_plan();
    std::mt19937_64 dice(seed);
    std::vector<std::string> nodes;
    for (std::uint64_t r = 0; r < plan.mesh.ranks(); ++r) nodes.push_back(std::to_string(dice() % 2));
    const Owners owners = owners_of(plan, nodes);
    ASSERT_EQ(owners.size(), plan.ranks.size());
    Replicas replicas(plan);
    std::map<std::tuple<const RankList*, std::string, StatementId, std::string>, std::set<std::uint64_t>> readers;
    for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
      const std::uint64_t rank = plan.ranks[r].rank;
      ASSERT_EQ(owners[r].size(), plan.ranks[r].destinations.size());
      for (const DestinationId d : owners[r].ids()) {
        const Destination& destination = plan.ranks[r].destinations[d];
        const Statement& s = plan.statements[destination.statement];
        const Statement& root = s.provenance == Provenance::kAlias ? *plan.find(s.alias_of) : s;
        const auto set = replicas.of(rank, destination);
        const auto on_node = std::count_if(set->begin(), set->end(), [&](auto o) { return nodes[o] == nodes[rank]; });
        const bool can_be = root.provenance == Provenance::kFile && destination.flat_parameter.empty() &&
                            destination.buffer_bytes > 0 && on_node > 1;
        ASSERT_EQ(owners[r][d].has_value(), can_be) << "seed " << seed;
        if (!can_be) continue;
        ASSERT_TRUE(std::binary_search(set->begin(), set->end(), *owners[r][d]));
        ASSERT_EQ(nodes[*owners[r][d]], nodes[rank]);
        auto& said = readers[{set.get(), nodes[rank], destination.statement, destination.slot}];
        said.insert(*owners[r][d]);
        ASSERT_EQ(said.size(), 1U) << "seed " << seed;
        ++handed_over;
      }
    }
  }
  EXPECT_GT(handed_over, 1000U);
}

TEST(Owners, BytesAreSharedOutEvenly) {
  World world;
  std::mt19937_64 dice(3);
  std::uint64_t total_bytes = 0;
  for (int i = 0; i < 200; ++i) {
    const std::uint64_t elems = 1 + dice() % 1'000'000;
    world.keys.push_back({fmt::format("w{}", i), {elems}});
    world.tensors.push_back(param(fmt::format("w{}", i), {elems}));
    total_bytes += elems * 4;
  }
  world.mesh({{"dp", 4}});
  const auto plan = world.plan({2});
  ASSERT_TRUE(plan) << verdict(plan);
  std::map<std::uint64_t, std::uint64_t> bytes;
  const Owners owners = owners_of(*plan, std::vector<std::string>(4));
  for (const DestinationId d : owners[0].ids()) bytes[*owners[0][d]] += plan->ranks[0].destinations[d].buffer_bytes;
  ASSERT_EQ(bytes.size(), 4U);
  for (const auto& [rank, sum] : bytes) {
    EXPECT_NEAR(static_cast<double>(sum), static_cast<double>(total_bytes) / 4, 1 << 20) << "rank " << rank;
  }
}

// Whoever reads one of many small neighbours reads the gaps between them along.
TEST(Owners, SmallNeighboursHaveOneReader) {
  World world;
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t elems = i % 10 == 0 ? 100'000 : 1000;
    world.keys.push_back({fmt::format("w{:03}", i), {elems}});
    world.tensors.push_back(param(fmt::format("w{:03}", i), {elems}));
  }
  world.mesh({{"dp", 2}});
  const auto plan = world.plan({0});
  ASSERT_TRUE(plan) << verdict(plan);
  const Owners owners = owners_of(*plan, {"", ""});
  std::set<std::uint64_t> readers;
  int changes = 0;
  std::optional<std::uint64_t> last;
  for (const DestinationId d : owners[0].ids()) {
    if (plan->ranks[0].destinations[d].buffer_bytes > 4000) continue;
    readers.insert(*owners[0][d]);
    if (last && last != owners[0][d]) ++changes;
    last = owners[0][d];
  }
  EXPECT_EQ(readers.size(), 2U);
  EXPECT_LE(changes, 4);
}

}  // namespace
}  // namespace lading::plan
