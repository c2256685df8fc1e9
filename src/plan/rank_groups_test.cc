#include "plan/rank_groups.h"

#include <gtest/gtest.h>

#include "base/json_reader.h"
#include "plan/plan_diff.h"
#include "plan/plan_for_tests.h"
#include "support/planner_support.h"

namespace lading::plan {
namespace {

using planner::world::param;
using planner::world::shard;
using planner::world::World;

// Large enough that no two tensors share a read: rows that divide evenly, rows that do not, columns, and a tensor that
// every rank has whole.
World world_of(std::vector<layout::Axis> mesh) {
  World world{{{"even", {2400, 64}}, {"odd", {7, 9000}}, {"wide", {5, 24000}}, {"whole", {3}}},
              {param("even", {2400, 64}), param("odd", {7, 9000}), param("wide", {5, 24000}), param("whole", {3})}};
  world.mesh(std::move(mesh)).place("even", {shard(1, 0), shard(0, 0)}).place("odd", {shard(0, 0)});
  world.place("wide", {shard(1, 1)});
  return world;
}

std::uint64_t value_of(const Offset& offset, const Plan& plan, std::uint64_t rank, std::size_t member) {
  if (!offset.list.empty()) return offset.list[member];
  std::uint64_t value = offset.base;
  for (std::size_t axis = offset.steps.size(); axis-- > 0;) {
    value += offset.steps[axis] * (rank % plan.mesh.axes()[axis].size);
    rank /= plan.mesh.axes()[axis].size;
  }
  return value;
}

TEST(RankGroups, OffsetsOfEveryRankAreSaidByItsGroup) {
  for (const auto& mesh :
       {std::vector<layout::Axis>{{"dp", 4}, {"tp", 2}}, {{"dp", 3}, {"tp", 3}}, {{"dp", 1}, {"tp", 8}}}) {
    const auto plan = world_of(mesh).plan();
    ASSERT_TRUE(plan) << planner::world::verdict(plan);
    const std::vector<RankGroup> groups = group_ranks(*plan);
    EXPECT_LT(groups.size(), plan->ranks.size());
    std::size_t ranks = 0;
    for (const RankGroup& group : groups) {
      for (std::size_t m = 0; m < group.members.size(); ++m, ++ranks) {
        const RankPlan& rank = plan->ranks[group.members[m]];
        std::vector<std::uint64_t> wanted;
        for (const Destination& d : rank.destinations) {
          for (const Transfer& t : d.transfers)
            wanted.insert(wanted.end(), {t.source_begin_bytes, t.target_begin_bytes});
        }
        for (const Read& read : rank.reads) wanted.push_back(read.begin_bytes);
        std::vector<std::uint64_t> said;
        for (const Offset& offset : group.offsets) said.push_back(value_of(offset, *plan, rank.rank, m));
        EXPECT_EQ(said, wanted) << "rank " << rank.rank;
      }
    }
    EXPECT_EQ(ranks, plan->ranks.size());
  }
}

// One rank's plan alone has plain numbers, and is no other plan than the same rank among all.
TEST(RankGroups, ARankIsTheSameAloneAndAmongOthers) {
  const World world = world_of({{"dp", 4}, {"tp", 2}});
  const auto all = world.plan();
  const auto one = world.plan({5});
  ASSERT_TRUE(all && one) << planner::world::verdict(all);
  const auto before = parsed(plan_json(*all));
  const auto after = parsed(plan_json(*one));
  const auto diff = diff_plans(before, after);
  ASSERT_TRUE(diff);
  EXPECT_TRUE(diff->changes.empty()) << word(diff->changes[0].section) << " " << diff->changes[0].field;
  EXPECT_EQ(diff->ranks_not_compared.size(), 7U);
  Plan moved = *one;
  moved.ranks[0].destinations[0].transfers[0].source_begin_bytes += 4;
  const auto other = parsed(plan_json(moved));
  EXPECT_EQ(diff_plans(before, other)->changes.size(), 1U);
}

}  // namespace
}  // namespace lading::plan
