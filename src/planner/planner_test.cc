// The plan as a whole: the order of calls, memory, and that equal inputs give equal plans.
#include "planner/planner.h"

#include <gtest/gtest.h>

#include "support/planner_support.h"

namespace lading::planner {
namespace {

using namespace world;  // NOLINT(google-build-using-namespace): the tests' own words

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

std::vector<std::string> calls(const Result<Plan, Errors>& plan) {
  if (!plan) return {verdict(plan)};
  std::vector<std::string> names;
  for (const StatementId i : plan->call_order) names.push_back(plan->statements[i].name);
  return names;
}

// A draft head cut out of the verifier's by a map, and what is computed from that again. The names sort against
// the order in which they must be computed.
World draft() {
  World world{
      {{"t2d", {8}, DType::kI64}, {"verifier.head", {8, 2}}},
      {buffer("t2d", {8}, DType::kI64), param("verifier.head", {8, 2}),
       derived(param("b.head", {4, 2}), call({"verifier.head", "t2d"})),
       derived(table("a.norms", {4}), call({"b.head"})), derived(table("c.mean", {}), call({"a.norms", "b.head"}))}};
  world.policy.allow_missing = {"b.head"};
  return world;
}

TEST(Planner, R66_CallsComeAfterTheirInputs) {
  const auto plan = draft().plan();
  EXPECT_EQ(calls(plan), (std::vector<std::string>{"b.head", "a.norms", "c.mean"}));
  EXPECT_EQ(source_of(plan, "b.head"), "call R6");
}

TEST(Planner, R66_CirclesAreRefusedAndNamed) {
  World world = draft();
  world.tensors[2].derivation = call({"a.norms"});
  EXPECT_EQ(verdict(world), "R66 a.norms; R66 b.head") << "c.mean only waits for them";
}

TEST(Planner, R66_AnInputUnderAnotherNameOfItsStorage) {
  // "a" waits for "z", which is told under its class's first name, "m"; by names alone "a" would come first.
  World world{
      {{"w", {2}}},
      {param("w", {2}), derived(table("z", {2}), call({"w"})), table("m", {2}), derived(table("a", {2}), call({"z"}))},
      {{"m", "z"}}};
  EXPECT_EQ(calls(world.plan()), (std::vector<std::string>{"m", "a"}));
}

TEST(Planner, R66_ACallWhoseTensorTheFileHasIsNotMade) {
  World world = draft();
  world.keys.push_back({"b.head", {4, 2}});
  EXPECT_EQ(calls(world.plan()), (std::vector<std::string>{"a.norms", "c.mean"}));
  EXPECT_EQ(source_of(world, "b.head"), "file R38");
}

TEST(Planner, R64_OwnedBytesAndStagingAreStated) {
  World world{{{"w", {1024, 256}, DType::kBF16}, {"b", {3}}}, {param("w", {1024, 256}), buffer("b", {3})}};
  world.mesh({{"dp", 4}}).cuda(4).place("w", {shard(0, 0)});
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  for (const RankPlan& rank : plan->ranks) {
    EXPECT_EQ(rank.owned_bytes, 256U * 256 * 2 + 12) << "a quarter of w and all of b";
    EXPECT_EQ(rank.staging_bytes, 64 * kMiB) << "256 MiB of the node, among four";
  }
}

TEST(Planner, R64_TheBudgetBoundsStagingAndTheFloorNeverBreaksIt) {
  World world{{{"w", {16}}}, {param("w", {16})}};
  world.mesh({{"dp", 16}}).cuda(16).place("w", {shard(0, 0)});
  const auto staging = [&](std::uint64_t budget) {
    world.policy.budget_bytes = budget;
    const auto plan = world.plan({0});
    return plan ? rank_of(*plan, 0)->staging_bytes : 0;
  };
  EXPECT_EQ(staging(1024 * kMiB), 64 * kMiB);
  EXPECT_EQ(staging(256 * kMiB), 32 * kMiB) << "at least 32 MiB each";
  EXPECT_EQ(staging(32 * kMiB), 32 * kMiB) << "but never more than was allowed";
  EXPECT_EQ(staging(32 * kMiB - 1), 0U) << "refused: less than one rank needs";
}

TEST(Planner, R64_WhoReadsNothingStagesNothing) {
  World world{{{"w", {4}}}, {param("w", {4})}};
  world.mesh({{"pp", 2}}).place("w", {owner(0, {0})});
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(rank_of(*plan, 1)->staging_bytes, 0U);
  EXPECT_EQ(rank_of(*plan, 1)->owned_bytes, 0U);
  EXPECT_EQ(rank_of(*plan, 0)->read_bytes, 16U);
}

// Ties, calls, mapping rules, ignored and unexpected keys, several files and a random tensor.
World busy() {
  World world = draft();
  for (const Key& key : {Key{"model.embed", {8, 2}}, {"old.step", {}}, {"old.lr", {}}, {"x.extra", {2}}, {"k.0", {3}}})
    world.keys.push_back(key);
  for (const Tensor& t : {param("embed", {8, 2}), param("head", {8, 2}), init(param("fresh", {4}), normal(0.02)),
                          param("k", {3}), real(table("rope", {2}))})
    world.tensors.push_back(t);
  world.ties = {{"head", "embed"}};
  world.mapping.rules = {mapping::Rule::rename("embed", "model.embed", "embed"),
                         mapping::Rule::rename_pattern("numbers", R"((k)\.0)", R"(\1)"),
                         mapping::Rule::ignore("old", R"(old\..*)")};
  world.policy.allow_missing = {"fresh", "b.head"};
  world.policy.allow_unexpected = {"x.*"};
  world.mesh({{"dp", 2}, {"tp", 2}}).cuda(4);
  world.place("embed", {shard(1, 0), shard(0, 0)})
      .place("head", {shard(1, 0), shard(0, 0)})
      .place("fresh", {flat({0})});
  return world;
}

TEST(Planner, R62_TheOrderOfTheInputsDoesNotMatter) {
  const World world = busy();
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << all_text(plan.error());
  World turned = world;
  std::reverse(turned.keys.begin(), turned.keys.end());
  std::reverse(turned.tensors.begin(), turned.tensors.end());
  std::reverse(turned.mapping.rules.begin(), turned.mapping.rules.end());
  std::reverse(turned.layout.rules.begin(), turned.layout.rules.end());
  std::reverse(turned.policy.allow_missing.begin(), turned.policy.allow_missing.end());
  std::reverse(turned.ties[0].begin(), turned.ties[0].end());
  const auto again = turned.plan();
  ASSERT_TRUE(again) << all_text(again.error());
  EXPECT_EQ(everything(*again), everything(*plan));
}

TEST(Planner, R62_RanksMayBeAskedInAnyOrderAndAlone) {
  const World world = busy();
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << all_text(plan.error());
  const auto turned = world.plan({3, 1, 0, 2});
  ASSERT_TRUE(turned);
  Plan sorted = *turned;
  std::sort(sorted.ranks.begin(), sorted.ranks.end(),
            [](const RankPlan& a, const RankPlan& b) { return a.rank < b.rank; });
  EXPECT_EQ(everything(sorted), everything(*plan));
  for (std::uint64_t rank = 0; rank < 4; ++rank) {
    Plan alone = *plan;
    alone.ranks = {plan->ranks[rank]};
    EXPECT_EQ(everything(*world.plan({rank})), everything(alone));
  }
}

TEST(Planner, R62_HowTheFilesAreSplitDoesNotMatter) {
  const World world = busy();
  World split = world;
  for (std::size_t i = 0; i < split.keys.size(); ++i) split.keys[i].file = static_cast<std::uint32_t>(i % 3);
  const auto plan = world.plan();
  const auto other = split.plan();
  ASSERT_TRUE(plan && other) << verdict(plan) << ", " << verdict(other);
  EXPECT_EQ(other->files.size(), 3U);
  for (const RankPlan& rank : plan->ranks) {
    for (const Statement& s : plan->statements)
      EXPECT_EQ(held(*plan, rank.rank, s.name), held(*other, rank.rank, s.name)) << s.name;
  }
}

TEST(Planner, R1_SkeletonOfACheckpointLoadsAllOfIt) {
  const World world{{{"a", {2}, DType::kBF16}, {"b", {}, DType::kI64}, {"c", {0, 3}}}, {}};
  const checkpoint::Catalog catalog = world.catalog();
  const auto skeleton = skeleton_of(catalog);
  ASSERT_TRUE(skeleton);
  World loaded = world;
  loaded.tensors = skeleton->tensors;
  const auto plan = loaded.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(held(*plan, 0, "a"), "a:0 a:1");
  EXPECT_EQ(held(*plan, 0, "b"), "b:0");
  EXPECT_EQ(held(*plan, 0, "c"), "");
  EXPECT_EQ(plan->find("a")->storage, DType::kBF16);
}

}  // namespace
}  // namespace lading::planner
