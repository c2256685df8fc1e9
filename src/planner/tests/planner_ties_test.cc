// Tie classes: one source, one dtype, one placement, one memory on each rank.
#include <gtest/gtest.h>

#include "support/planner_support.h"

namespace lading::planner {
namespace {

using namespace world;  // NOLINT(google-build-using-namespace): the tests' own words

// An embedding and a head that share their storage, beside a norm that the checkpoint always has.
World tied(std::vector<Key> keys) {
  World world{
      std::move(keys), {param("embed", {4, 2}), param("head", {4, 2}), param("norm", {2})}, {{"embed", "head"}}};
  world.keys.push_back({"norm", {2}});
  return world;
}
const std::vector<Key> kEmbedOnly = {{"embed", {4, 2}}};
const std::vector<Key> kHeadOnly = {{"head", {4, 2}}};
const std::vector<Key> kBoth = {{"embed", {4, 2}}, {"head", {4, 2}}};

TEST(PlannerTies, R9_R49_OneMemoryUnderAllItsNames) {
  const auto plan = tied(kEmbedOnly).mesh({{"dp", 2}}).place("*", {shard(0, 0)}).plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(source_of(plan, "embed"), "file R50");
  EXPECT_EQ(source_of(plan, "head"), "alias R49");
  EXPECT_EQ(plan->find("head")->alias_of, "embed");
  for (const std::uint64_t rank : {0U, 1U}) {
    EXPECT_EQ(rank_of(*plan, rank)->destinations.size(), 2U) << "embed with head, and norm";
    EXPECT_EQ(find(*plan, rank, "embed"), find(*plan, rank, "head"));
    // Half of 4x2 and half of 2, four bytes each: a tie is stored once.
    EXPECT_EQ(rank_of(*plan, rank)->owned_bytes, 16U + 4U);
  }
  EXPECT_EQ(held(*plan, 1, "head"), of("embed", {4, 5, 6, 7}));
}

TEST(PlannerTies, R50_TheSourceIsChosenSymmetrically) {
  const auto plan = tied(kHeadOnly).plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(source_of(plan, "embed"), "file R50");
  EXPECT_EQ(held(*plan, 0, "embed"), of("head", {0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_TRUE(plan->find("embed")->must_equal.empty());
}

TEST(PlannerTies, R50_BothPresentAreToBeCompared) {
  const auto plan = tied(kBoth).plan();
  ASSERT_TRUE(plan) << verdict(plan);
  ASSERT_EQ(plan->find("embed")->must_equal.size(), 1U);
  EXPECT_EQ(plan->find("embed")->must_equal.front().text(), mapping::Expression::source("head").text());
  EXPECT_EQ(rank_of(*plan, 0)->destinations.size(), 2U) << "compared, and stored once";
  EXPECT_TRUE(plan->unexpected_keys.empty());
}

TEST(PlannerTies, R50_EachRankComparesWhatItOwns) {
  World world = tied(kBoth);
  world.mesh({{"dp", 2}}).place("norm", {}).place("*", {shard(0, 1)});
  const auto cut = world.plan();
  ASSERT_TRUE(cut) << verdict(cut);
  EXPECT_EQ(held(*cut, 1, "embed"), of("embed", {1, 3, 5, 7}));
  EXPECT_EQ(compared(*cut, 1, "embed"), std::vector{of("head", {1, 3, 5, 7})});
  EXPECT_EQ(compared(*cut, 1, "norm"), std::vector<std::string>{});
}

TEST(PlannerTies, R50_R64_WhatIsComparedIsRead) {
  const auto one = tied(kEmbedOnly).plan();
  const auto both = tied(kBoth).plan();
  ASSERT_TRUE(one && both);
  EXPECT_FALSE(one->ranks[0].reads.back().is_comparison());
  const Read& compared = both->ranks[0].reads.back();
  EXPECT_TRUE(compared.is_comparison());
  EXPECT_EQ(compared.total_bytes(), 32U) << "after everything is written, and counted for itself";
  EXPECT_EQ(both->ranks[0].owned_bytes, one->ranks[0].owned_bytes);
  EXPECT_TRUE(checker::check_plan(*both)->unread.empty());
}

TEST(PlannerTies, R50_PaddingIsNotCompared) {
  World world{{{"a", {5}}, {"b", {5}}}, {param("a", {5}), param("b", {5})}, {{"a", "b"}}};
  const auto plan = world.mesh({{"dp", 2}}).place("*", {flat({0})}).plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(held(*plan, 1, "a"), "a:3 a:4 =0");
  EXPECT_EQ(compared(*plan, 1, "a"), std::vector<std::string>{"b:3 b:4 ."});
}

TEST(PlannerTies, R50_EveryOtherKeyIsComparedOnce) {
  World world = tied({{"embed", {4, 2}}, {"head", {4, 2}}, {"copy", {4, 2}}});
  world.tensors.push_back(param("copy", {4, 2}));
  world.ties = {{"copy", "embed", "head"}};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(find(*plan, 0, "head")->comparisons.size(), 2U);
  Plan forgotten = *plan;
  forgotten.ranks[0].destinations[0].comparisons.pop_back();
  EXPECT_FALSE(checker::check_plan(forgotten)) << "the checker misses it";
}

TEST(PlannerTies, R21_R50_AnotherShapeThatIsAllowedIsNotCompared) {
  World world = tied({{"embed", {4, 2}}, {"head", {5, 2}}});
  world.policy.allow_mismatch = {"head"};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_TRUE(plan->find("embed")->must_equal.empty());
  EXPECT_EQ(plan->ignored_keys, (std::vector<std::pair<std::string, std::string>>{{"head", "allow_mismatch"}}));
  EXPECT_EQ(plan->keys.mismatched, std::vector<std::string>{"head"});
  EXPECT_TRUE(plan->keys.missing.empty() && plan->keys.initialized.empty()) << "the class has a value from a file";
}

TEST(PlannerTies, R50_BothPresentInDifferentFormsAreRefused) {
  EXPECT_EQ(verdict(tied({{"embed", {4, 2}}, {"head", {4, 2}, DType::kBF16}})), "R50 embed");
  World shapes = tied({{"embed", {4, 2}}, {"head", {5, 2}}});
  EXPECT_EQ(verdict(shapes), "R50 embed") << "the second key of a class is compared as a whole too";
}

TEST(PlannerTies, R50_NonePresentIsAnErrorThatKnowsTheTie) {
  const auto plan = tied({}).plan();
  ASSERT_EQ(verdict(plan), "R50 embed");
  EXPECT_NE(plan.error().front().found.find("tied"), std::string::npos) << plan.error().front().found;
}

TEST(PlannerTies, R50_UntiedOnRequestBothHaveTheirOwn) {
  World world = tied(kBoth);
  world.policy.ties = policy::Ties::kUntie;
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(held(*plan, 0, "embed"), of("embed", {0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(held(*plan, 0, "head"), of("head", {0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_NE(find(*plan, 0, "embed"), find(*plan, 0, "head"));
}

TEST(PlannerTies, R50_AClassWithOneKeyHasNothingToUntie) {
  World world = tied(kEmbedOnly);
  world.policy.ties = policy::Ties::kUntie;
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(source_of(plan, "head"), "alias R49");
  world.tensors[0] = allocated(world.tensors[0]);
  world.tensors[1] = allocated(world.tensors[1]);
  EXPECT_EQ(verdict(world), "accepted") << "and memory that is there may stay as it is";
}

TEST(PlannerTies, R50_UntiedMembersWithoutAKeyCouldGoWithEither) {
  World world = tied(kBoth);
  world.tensors.push_back(param("copy", {4, 2}));
  world.tensors.push_back(param("zopy", {4, 2}));
  world.ties = {{"copy", "embed", "head", "zopy"}};
  world.policy.ties = policy::Ties::kUntie;
  const auto plan = world.plan();
  ASSERT_EQ(verdict(plan), "R50 copy");
  const std::string text = plan.error().front().text();
  for (const char* name : {"\"copy\"", "\"zopy\"", "\"embed\"", "\"head\""})
    EXPECT_NE(text.find(name), std::string::npos) << text;
}

TEST(PlannerTies, R50_WhatMayLeaveItsTieHasItsOwnKey) {
  World world = tied(kBoth);
  world.tensors.push_back(param("copy", {4, 2}));
  world.ties = {{"copy", "embed", "head"}};
  world.policy.may_untie = {"copy", "head"};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(held(*plan, 0, "head"), of("head", {0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(find(*plan, 0, "copy"), find(*plan, 0, "embed")) << "it has no key, and stays";
}

TEST(PlannerTies, R50_ATieStaysWhereNoOtherKeyIsLeftOrMemoryIsThere) {
  World all = tied(kBoth);
  all.policy.may_untie = {"*"};
  EXPECT_EQ(source_of(all, "head"), "alias R49");
  World allocated_before = tied(kBoth);
  for (auto& tensor : allocated_before.tensors) tensor = allocated(tensor);
  allocated_before.policy.may_untie = {"head"};
  EXPECT_EQ(source_of(allocated_before, "head"), "alias R49");
}

TEST(PlannerTies, R50_OneExpressionForTwoNamesIsOneSource) {
  World world = tied({{"raw", {4, 2}}});
  world.build("embed", mapping::Expression::source("raw")).build("head", mapping::Expression::source("raw"));
  world.policy.ties = policy::Ties::kUntie;
  EXPECT_EQ(source_of(world, "head"), "alias R49");
}

TEST(PlannerTies, R14_R50_TheUsersWordIsASourceOfItsOwn) {
  World world = tied(kEmbedOnly);
  world.policy.ties = policy::Ties::kUntie;
  world.policy.external = {"head"};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(source_of(plan, "embed"), "file R38");
  EXPECT_EQ(source_of(plan, "head"), "host R14");
}

TEST(PlannerTies, R50_KeysOfDifferentDtypesAreNamedWithThem) {
  const auto plan = tied({{"embed", {4, 2}}, {"head", {4, 2}, DType::kBF16}}).plan();
  ASSERT_EQ(verdict(plan), "R50 embed");
  const std::string text = plan.error().front().text();
  EXPECT_NE(text.find("\"embed\" F32 [4, 2]"), std::string::npos) << text;
  EXPECT_NE(text.find("\"head\" BF16 [4, 2]"), std::string::npos) << text;
}

TEST(PlannerTies, R50_ATieIsCoveredByAnyMembersRecipeOrValue) {
  World world = tied({});
  world.tensors[1] = init(world.tensors[1], normal(0.02));
  world.policy.allow_missing = {"embed", "head"};
  EXPECT_EQ(source_of(world, "embed"), "random R12");
  world.policy.allow_missing = {};
  world.tensors[0] = real(world.tensors[0]);
  world.tensors[1] = real(world.tensors[1]);
  world.policy.keep = {"head"};
  EXPECT_EQ(source_of(world, "embed"), "kept R14");
  EXPECT_EQ(source_of(world, "head"), "alias R49");
}

TEST(PlannerTies, R51_EveryStageWithAMemberLoadsFromTheClassesKey) {
  World world = tied(kEmbedOnly);
  world.mesh({{"pp", 3}}).place("embed", {owner(0, {0})}).place("head", {owner(0, {2})});
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  const std::string all = of("embed", {0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(held(*plan, 0, "embed"), all);
  EXPECT_EQ(held(*plan, 0, "head"), "absent");
  EXPECT_EQ(held(*plan, 1, "embed"), "absent");
  EXPECT_EQ(held(*plan, 1, "head"), "absent");
  EXPECT_EQ(held(*plan, 2, "head"), all) << "the stage does not own the layer, and has its bytes all the same";
  EXPECT_EQ(find(*plan, 0, "embed")->transfers, find(*plan, 2, "head")->transfers) << "copies of the same bytes";
  EXPECT_EQ(plan->statements[find(*plan, 2, "head")->statement].name, "head");
}

TEST(PlannerTies, R51_StagesThatCutTheirCopiesDoItAlike) {
  World world = tied(kHeadOnly);
  world.mesh({{"pp", 2}, {"tp", 2}});
  world.place("embed", {owner(0, {0}), shard(1, 0)}).place("head", {owner(0, {1}), shard(1, 0)});
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(held(*plan, 1, "embed"), of("head", {4, 5, 6, 7}));
  EXPECT_EQ(held(*plan, 3, "head"), of("head", {4, 5, 6, 7}));
  EXPECT_EQ(held(*plan, 2, "embed"), "absent");
}

TEST(PlannerTies, R52_OnePlacementWhereBothAre) {
  World cuts = tied(kEmbedOnly);
  cuts.mesh({{"tp", 2}}).place("embed", {shard(0, 0)}).place("head", {shard(0, 1)});
  EXPECT_EQ(verdict(cuts), "R52 embed");
  World half = tied(kEmbedOnly);
  half.mesh({{"tp", 2}}).place("embed", {shard(0, 0)});
  EXPECT_EQ(verdict(half), "R52 embed") << "one cut and one whole";
}

TEST(PlannerTies, R52_OneFsdpUnit) {
  World world = tied(kEmbedOnly);
  world.mesh({{"dp", 2}}).place("embed", {shard(0, 0)}).place("head", {shard(0, 0)});
  world.layout.rules[0].placement.fsdp_group = "root";
  world.layout.rules[1].placement.fsdp_group = "lm_head";
  const auto plan = world.plan();
  ASSERT_EQ(verdict(plan), "R52 embed");
  EXPECT_NE(plan.error().front().found.find("\"lm_head\""), std::string::npos) << plan.error().front().found;
  world.layout.rules[1].placement.fsdp_group = "root";
  EXPECT_EQ(verdict(world), "accepted");
}

TEST(PlannerTies, R31_OneDTypeForTheClass) {
  World pinned = tied({{"embed", {4, 2}, DType::kBF16}});
  pinned.policy.dtype = DType::kBF16;
  EXPECT_EQ(verdict(pinned), "accepted");
  pinned.pins = {{"head", model::PinStrength::kFloat16AndBFloat16}};
  EXPECT_EQ(verdict(pinned), "R31 embed");
  World subtree = tied({{"embed", {4, 2}, DType::kBF16}});
  subtree.policy.subtree_dtypes = {{"head", DType::kF32}};
  EXPECT_EQ(verdict(subtree), "R31 embed");
}

TEST(PlannerTies, R49_ThreeNamesAndTwoMembersOnARank) {
  World world = tied(kHeadOnly);
  world.tensors.push_back(param("copy", {4, 2}));
  world.ties = {{"embed", "head"}, {"copy", "head"}};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(plan->find("head")->alias_of, "copy") << "the first by name";
  EXPECT_EQ(find(*plan, 0, "embed"), find(*plan, 0, "copy"));
  EXPECT_EQ(find(*plan, 0, "head"), find(*plan, 0, "copy"));
  EXPECT_EQ(find(*plan, 0, "head")->aliases.size(), 2U);
}

// An LSTM lists its weights once more as plain attributes, and ZeRO-3 leaves those out: random values are keyed by the
// root's name, which is to be there under every layout.
TEST(PlannerTies, R16_R49_TheRootIsTheFirstRegisteredName) {
  World world{{},
              {tensor(Kind::kAttribute, "_flat[0]", {4}), init(param("a.w", {4}), normal(1)), param("w", {4})},
              {{"_flat[0]", "a.w", "w"}}};
  world.policy.allow_missing = {"*"};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(plan->find("a.w")->provenance, Provenance::kRandom);
  EXPECT_EQ(plan->find("_flat[0]")->alias_of, "a.w");
  EXPECT_EQ(plan->find("w")->alias_of, "a.w");
  ASSERT_EQ(rank_of(*plan, 0)->destinations.size(), 1U);
  const Destination& one = rank_of(*plan, 0)->destinations[DestinationId(0)];
  EXPECT_EQ(plan->statements[one.statement].name, "a.w") << "and not the attribute, which comes first by name";
  EXPECT_EQ(one.aliases.size(), 2U);
  world.tensors.erase(world.tensors.begin() + 1, world.tensors.end());
  world.tensors.push_back(tensor(Kind::kAttribute, "b", {4}));
  world.tensors.front().init = normal(1);
  world.ties = {{"_flat[0]", "b"}};
  const auto attributes = world.plan();
  ASSERT_TRUE(attributes) << verdict(attributes);
  EXPECT_EQ(attributes->find("b")->alias_of, "_flat[0]") << "none is registered: the first by name";
}

// Two memories each, on other ranks: the ordinary slot of one and the second slot of both meet on rank 1.
World in_two_slots(std::vector<Cut> embed_second, std::vector<Cut> head_second) {
  World world = tied(kEmbedOnly);
  world.mesh({{"pp", 2}, {"tp", 2}}).place("embed", {owner(0, {0})}).place("head", {owner(0, {1})});
  world.layout.rules[0].placement.slots.push_back({"secondary", std::move(embed_second)});
  world.layout.rules[1].placement.slots.push_back({"secondary", std::move(head_second)});
  return world;
}

TEST(PlannerTies, R49_R51_EachSlotHasItsOwnMembersOnARank) {
  const auto plan = in_two_slots({owner(0, {0, 1}), shard(1, 0)}, {owner(0, {1}), shard(1, 0)}).plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(held(*plan, 2, "head"), of("embed", {0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(held(*plan, 2, "embed"), "absent");
  EXPECT_EQ(find(*plan, 2, "head", "secondary"), find(*plan, 2, "embed", "secondary"));
  EXPECT_EQ(held(*plan, 2, "head", "secondary"), of("embed", {0, 1, 2, 3}));
  EXPECT_EQ(find(*plan, 0, "embed", "secondary")->aliases.size(), 0U);
}

TEST(PlannerTies, R52_SlotsThatMeetAreCutAlikeWhereverTheFirstOnesAre) {
  EXPECT_EQ(verdict(in_two_slots({shard(1, 0)}, {shard(1, 1)})), "R52 embed");
  EXPECT_EQ(verdict(in_two_slots({owner(0, {0}), shard(1, 0)}, {owner(0, {1}), shard(1, 1)})), "accepted");
}

// Owners over one axis and over two: no cut of one is like a cut of the other, and still no rank has both.
TEST(PlannerTies, R51_R52_StagesAreApartHoweverTheirOwnersAreWritten) {
  World world = tied(kEmbedOnly);
  Cut pairs = owner(0, {2, 3});
  pairs.axes = {0, 1};
  world.mesh({{"pp", 2}, {"tp", 2}, {"dp", 2}});
  world.place("embed", {owner(0, {0}), shard(2, 0)}).place("head", {pairs, shard(2, 1)});
  EXPECT_EQ(verdict(world), "accepted");
}

TEST(PlannerTies, R31_ABufferThatSharesAParametersStorageIsOfItsDtype) {
  World world{
      {{"w", {4}, DType::kBF16}}, {trained(param("w", {4})), tensor(Kind::kAttribute, "cache", {4})}, {{"cache", "w"}}};
  world.policy.compute_dtype = DType::kBF16;
  world.policy.dtype = DType::kF32;
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(plan->find("cache")->storage, DType::kF32);
  EXPECT_EQ(plan->find("cache")->compute, DType::kBF16) << "the parameter's, because it is one";
}

TEST(PlannerTies, R14_R31_AKeptEmbeddingDecidesForTheHeadOnMeta) {
  World world = tied({});
  world.tensors[0] = real(world.tensors[0]);
  world.policy.keep = {"embed"};
  world.policy.dtype = DType::kBF16;
  world.policy.cast = policy::Cast::kExact;
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(plan->find("embed")->storage, DType::kF32);
  EXPECT_EQ(plan->find("head")->storage, DType::kF32);
}

TEST(PlannerTies, R49_TheTieIsOnePlaceInASharedBuffer) {
  World world = tied(kEmbedOnly);
  world.mesh({{"dp", 2}})
      .place("norm", {flat_parameter(0, "root", 8, 12)})
      .place("*", {flat_parameter(0, "root", 0, 12)});
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  // 12 elements in two parts of 6: embed is 0..8, norm 8..10, and the rest is the framework's.
  EXPECT_EQ(held(*plan, 0, "head"), of("embed", {0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(held(*plan, 1, "head"), "embed:6 embed:7 . . . .");
  EXPECT_EQ(held(*plan, 1, "norm"), ". . norm:0 norm:1 . .");
  EXPECT_EQ(rank_of(*plan, 1)->owned_bytes, 24U) << "the unit counts once";
  EXPECT_EQ(rank_of(*plan, 0)->flat_parameter_gap_bytes, 0U);
  EXPECT_EQ(rank_of(*plan, 1)->flat_parameter_gap_bytes, 8U) << "two elements, which nobody writes (R56)";
}

TEST(PlannerTies, R39_R50_EveryNameOfAClassMustBeAllowedToBeMissing) {
  World world = tied({});
  world.tensors[0] = init(world.tensors[0], normal(1));
  world.tensors[1] = init(world.tensors[1], normal(1));
  world.policy.allow_missing = {"head"};
  const auto plan = world.plan();
  ASSERT_EQ(verdict(plan), "R50 embed");
  EXPECT_NE(plan.error().front().text().find("\"embed\""), std::string::npos) << plan.error().front().text();
  world.policy.allow_missing = {"embed"};
  EXPECT_EQ(verdict(world), "R50 head") << "the one that is not allowed";
  world.policy.allow_missing = {"*"};
  EXPECT_EQ(verdict(world), "accepted");
}

TEST(PlannerTies, R50_TwoSourcesOfOneRankAreRefusedUnlessEqual) {
  World world = tied({});
  world.policy.allow_missing = {"*"};
  world.tensors[0] = init(world.tensors[0], fill(1));
  world.tensors[1] = init(world.tensors[1], fill(2));
  EXPECT_EQ(verdict(world), "R50 embed");
  world.tensors[1] = init(world.tensors[1], fill(1));
  EXPECT_EQ(verdict(world), "accepted");
  world.tensors[0] = derived(world.tensors[0], fill(1));
  world.tensors[1] = derived(world.tensors[1], fill(2));
  EXPECT_EQ(verdict(world), "R50 embed");
  world.tensors[1] = derived(world.tensors[1], fill(1));
  EXPECT_EQ(verdict(world), "accepted");
}

TEST(PlannerTies, R49_OneStorageIsOnOneDevice) {
  World world = tied({});
  world.policy.allow_missing = {"*"};
  world.tensors[0] = real(world.tensors[0], "cpu");
  world.tensors[1] = real(world.tensors[1], "cuda:1");
  EXPECT_EQ(verdict(world), "R49 embed");
  world.tensors[1] = real(world.tensors[1], "cpu");
  EXPECT_EQ(verdict(world), "accepted");
}

TEST(PlannerTies, R49_OneParameterTrainsOrDoesNot) {
  World world = tied(kEmbedOnly);
  world.tensors[1] = trained(world.tensors[1]);
  const auto plan = world.plan();
  ASSERT_EQ(verdict(plan), "R49 embed");
  EXPECT_NE(plan.error().front().text().find("requires_grad"), std::string::npos) << plan.error().front().text();
  world.tensors[0] = trained(world.tensors[0]);
  EXPECT_EQ(verdict(world), "accepted");
}

// One of the two names lies in a frozen tower. The other one does not, so the storage is not the tower's.
TEST(PlannerTies, R28_R31_ATieIsFrozenIfAllItsNamesAre) {
  for (const char* tower : {"a.emb", "z.emb"}) {
    World world{{{"m.w", {4}}, {tower, {4}}},
                {param(tower, {4}), param("m.head", {4}), trained(param("m.w", {4}))},
                {{tower, "m.head"}}};
    world.policy.compute_dtype = DType::kBF16;
    const auto plan = world.plan();
    ASSERT_TRUE(plan) << verdict(plan);
    EXPECT_EQ(plan->find(tower)->storage, DType::kF32) << tower;
    EXPECT_EQ(plan->find("m.head")->storage, DType::kF32) << tower;
  }
}

}  // namespace
}  // namespace lading::planner
