#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "policy/policy.h"

namespace lading::policy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;

GroupMember trainable(std::string_view name, std::string_view group, DType storage, DType compute) {
  return {.name = name, .group = group, .storage = storage, .compute = compute, .requires_grad = true};
}
GroupMember frozen(std::string_view name, std::string_view group, DType storage) {
  return {.name = name, .group = group, .storage = storage, .compute = storage, .requires_grad = false};
}

Errors check(const std::vector<GroupMember>& members) {
  Policy policy;
  policy.compute_dtype = kBF16;
  return check_groups(policy, members);
}

std::vector<std::string> modules_of(const std::vector<GroupProposal>& proposals, DType storage, DType compute) {
  for (const GroupProposal& proposal : proposals) {
    if (proposal.storage == storage && proposal.compute == compute) return proposal.modules;
  }
  return {"no such proposal"};
}

TEST(CheckGroups, R27_AUniformUnitIsFine) {
  EXPECT_TRUE(check({trainable("a.w", "a", kBF16, kBF16), trainable("a.b", "a", kBF16, kBF16),
                     trainable("c.w", "c", kF32, kF32)})
                  .empty());
}

TEST(CheckGroups, R27_MixedStorageInOneLeafNamesEveryParameter) {
  const Errors errors = check(
      {trainable("l.x", "l", kF32, kF32), trainable("l.y", "l", kBF16, kBF16), trainable("l.z", "l", kBF16, kBF16)});
  ASSERT_EQ(errors.size(), 2U);
  EXPECT_THAT(errors.list()[0].message, HasSubstr("unit \"l\""));
  EXPECT_EQ(errors.list()[1].rule, "R27");
  for (const char* name : {"\"l.x\"", "\"l.y\"", "\"l.z\""}) EXPECT_THAT(errors.list()[1].found, HasSubstr(name));
}

TEST(CheckGroups, R27_SeparableOnesComeWithARemedy) {
  const Errors errors = check({trainable("l.p.w", "l", kBF16, kBF16), trainable("l.q.w", "l", kF32, kF32)});
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_THAT(errors.front().remedy, HasSubstr("shard_by_dtype"));
  EXPECT_THAT(errors.front().found, HasSubstr("\"l.p.w\""));
  EXPECT_THAT(errors.front().found, HasSubstr("\"l.q.w\""));
}

TEST(CheckGroups, R27_FrozenParametersMayBeStoredOtherwise) {
  GroupMember widened = frozen("l.y", "l", kF32);
  widened.compute = kBF16;
  EXPECT_TRUE(check({trainable("l.x", "l", kBF16, kBF16), widened}).empty());
  EXPECT_TRUE(check({trainable("l.x", "l", kBF16, kBF16), frozen("l.steps", "l", DType::kI64)}).empty())
      << "FSDP2 casts floating members only";
}

// torch 2.13 gathers every floating member of a unit in its param_dtype.
TEST(CheckGroups, R27_AFrozenParameterOfAnotherComputeDtypeIsRefusedByName) {
  const std::vector<GroupMember> members = {trainable("l.w", "l", kF32, kBF16), frozen("l.norm.w", "l", kF32)};
  const Errors errors = check(members);
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors.front().rule, "R27");
  EXPECT_EQ(errors.front().tensor, "l.norm.w");
  EXPECT_THAT(errors.front().message, HasSubstr("BF16"));
  EXPECT_THAT(errors.front().found, HasSubstr("F32: \"l.norm.w\""));
  EXPECT_THAT(errors.front().remedy, HasSubstr(R"("compute_record": "ignore")"));
  EXPECT_EQ(check({trainable("l.w", "l", kF32, kBF16), frozen("l.q.w", "l", DType::kF8E4M3)}).size(), 1U)
      << "a payload would be cast too";

  Policy ignoring;
  ignoring.compute_dtype = kBF16;
  ignoring.compute_record = ComputeRecord::kIgnore;
  EXPECT_THAT(check_groups(ignoring, members).front().remedy, Not(HasSubstr("compute_record")));
  EXPECT_TRUE(check_groups(Policy(), {trainable("l.w", "l", kBF16, kBF16), frozen("l.norm.w", "l", kF32)}).empty())
      << "without a param_dtype nothing is cast";
}

TEST(CheckGroups, R27_AFrozenUnitHasOneComputeDtypeToo) {
  const Errors errors = check({frozen("t.a.w", "t", kF32), frozen("t.b.w", "t", kBF16), frozen("t.c.w", "t", kBF16)});
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors.front().tensor, "t.a.w") << "the one that is not as the policy says";
  EXPECT_TRUE(check({frozen("t.a.w", "t", kF32), frozen("t.b.w", "t", kF32)}).empty());
  EXPECT_TRUE(check({frozen("a.w", "", kF32), frozen("b.w", "", kBF16)}).empty()) << "in no unit";
}

TEST(CheckGroups, R27_AMixedUnitIsToldOnce) {
  EXPECT_EQ(
      check({trainable("l.p.w", "l", kBF16, kBF16), trainable("l.q.w", "l", kF32, kF32), frozen("l.r.w", "l", kF32)})
          .size(),
      1U);
}

TEST(CheckGroups, R27_OneStorageButTwoComputeDtypesIsMixedToo) {
  EXPECT_FALSE(check({trainable("l.p.w", "l", kF32, kBF16), trainable("l.q.w", "l", kF32, kF32)}).empty());
}

TEST(CheckGroups, R27_WhatIsInNoUnitIsNotFsdp2sBusiness) {
  EXPECT_TRUE(check({trainable("l.x", "", kBF16, kBF16), trainable("l.y", "", kF32, kF32)}).empty());
}

TEST(CheckGroups, R27_LongListsAreCut) {
  std::vector<std::string> names;
  for (int i = 0; i < 100; ++i) names.push_back("l." + std::to_string(i) + ".w");
  std::vector<GroupMember> members{trainable("l.a.w", "l", kF32, kF32)};
  for (const std::string& name : names) members.push_back(trainable(name, "l", kBF16, kBF16));
  const Errors errors = check(members);
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_THAT(errors.front().found, HasSubstr("and 95 more"));
}

TEST(ProposeGroups, R27_AUniformUnitStaysWhole) {
  const auto proposals =
      propose_groups({trainable("l.0.a.w", "u", kBF16, kBF16), trainable("l.0.b.w", "u", kBF16, kBF16)});
  ASSERT_TRUE(proposals);
  ASSERT_EQ(proposals->size(), 1U);
  EXPECT_THAT(proposals->front().modules, ElementsAre("l.0"));
  EXPECT_THAT(proposals->front().parameters, ElementsAre("l.0.a.w", "l.0.b.w"));
}

TEST(ProposeGroups, R27_EachDtypeGetsItsMaximalModules) {
  const auto proposals =
      propose_groups({trainable("l.attn.q.w", "l", kBF16, kBF16), trainable("l.attn.k.w", "l", kBF16, kBF16),
                      trainable("l.mixer.fp32.A_log", "l", kF32, kF32), trainable("l.mixer.fp32.dt", "l", kF32, kF32),
                      trainable("l.mixer.in.w", "l", kBF16, kBF16)});
  ASSERT_TRUE(proposals);
  EXPECT_THAT(modules_of(*proposals, kF32, kF32), ElementsAre("l.mixer.fp32"));
  EXPECT_THAT(modules_of(*proposals, kBF16, kBF16), ElementsAre("l.attn", "l.mixer.in"));
}

TEST(ProposeGroups, R27_AModulesOwnParametersTakeUniformChildrenAlong) {
  const auto proposals = propose_groups({trainable("l.w", "l", kBF16, kBF16), trainable("l.same.w", "l", kBF16, kBF16),
                                         trainable("l.other.w", "l", kF32, kF32)});
  ASSERT_TRUE(proposals);
  EXPECT_THAT(modules_of(*proposals, kBF16, kBF16), ElementsAre("l"));
  EXPECT_THAT(modules_of(*proposals, kF32, kF32), ElementsAre("l.other"));
}

TEST(ProposeGroups, R27_StorageAndComputeAreSeparateAxes) {
  const auto proposals = propose_groups({trainable("l.p.w", "l", kF32, kBF16), trainable("l.q.w", "l", kF32, kF32)});
  ASSERT_TRUE(proposals);
  EXPECT_THAT(modules_of(*proposals, kF32, kBF16), ElementsAre("l.p"));
  EXPECT_THAT(modules_of(*proposals, kF32, kF32), ElementsAre("l.q"));
}

TEST(ProposeGroups, R27_InseparableSiblingsAreAnErrorThatNamesThemAll) {
  const auto proposals = propose_groups({trainable("a.x", "", kF32, kF32), trainable("a.y", "", kBF16, kBF16),
                                         trainable("b.x", "", kBF16, kBF16), trainable("b.y", "", kBF16, kF32),
                                         trainable("c.x", "", kBF16, kBF16)});
  ASSERT_FALSE(proposals);
  ASSERT_EQ(proposals.error().size(), 2U) << "one per module";
  EXPECT_THAT(proposals.error().list()[0].found, HasSubstr("\"a.x\""));
  EXPECT_THAT(proposals.error().list()[0].found, HasSubstr("\"a.y\""));
  EXPECT_THAT(proposals.error().list()[1].found, HasSubstr("\"b.y\""));
  EXPECT_THAT(proposals.error().list()[1].found, Not(HasSubstr("\"c.x\"")));
}

TEST(ProposeGroups, R27_FrozenSiblingsDoNotMatter) {
  const auto proposals = propose_groups({trainable("a.x", "", kF32, kF32), frozen("a.y", "", kBF16)});
  ASSERT_TRUE(proposals);
  ASSERT_EQ(proposals->size(), 1U);
  EXPECT_THAT(proposals->front().parameters, ElementsAre("a.x"));
}

TEST(ProposeGroups, R27_UnitsStayApart) {
  const auto proposals =
      propose_groups({trainable("l.0.w", "l.0", kBF16, kBF16), trainable("l.1.w", "l.1", kBF16, kBF16),
                      trainable("embed.w", "", kBF16, kBF16), trainable("norm.w", "", kBF16, kBF16)});
  ASSERT_TRUE(proposals);
  EXPECT_THAT(modules_of(*proposals, kBF16, kBF16), ElementsAre("", "l.0", "l.1"));
}

TEST(ProposeGroups, NothingTrainableNeedsNothing) {
  const auto proposals = propose_groups({frozen("a.x", "a", kF32)});
  ASSERT_TRUE(proposals);
  EXPECT_THAT(*proposals, IsEmpty());
}

// Whatever is proposed passes the check: every parameter in the innermost proposed module above it.
TEST(ProposeGroups, R27_WhatIsProposedPassesTheCheck) {
  const std::vector<GroupMember> members = {trainable("w", "", kBF16, kBF16),    trainable("a.w", "", kF32, kBF16),
                                            trainable("a.b.w", "", kF32, kF32),  trainable("a.b.c.w", "", kBF16, kBF16),
                                            trainable("a.d.w", "", kF32, kBF16), trainable("e.f.w", "", kBF16, kBF16),
                                            trainable("e.g.w", "", kF32, kF32),  trainable("e.g.h.i.w", "", kF32, kF32),
                                            trainable("e.h.w", "", kF32, kBF16)};
  const auto proposals = propose_groups(members);
  ASSERT_TRUE(proposals);
  std::vector<GroupMember> grouped = members;
  std::size_t listed = 0;
  for (GroupMember& member : grouped) {
    const std::string* innermost = nullptr;
    for (const GroupProposal& proposal : *proposals) {
      for (const std::string& module : proposal.modules) {
        if (model::is_beneath(member.name, module) && (innermost == nullptr || module.size() > innermost->size())) {
          innermost = &module;
        }
      }
    }
    ASSERT_NE(innermost, nullptr) << member.name;
    member.group = innermost->empty() ? "(root)" : std::string_view(*innermost);
  }
  for (const GroupProposal& proposal : *proposals) listed += proposal.parameters.size();
  EXPECT_EQ(listed, members.size());
  EXPECT_TRUE(check(grouped).empty());
}

TEST(CheckGroups, R27_WhereOnlyTheRecordSetsThemApartTheRemedySaysSo) {
  Policy policy;
  policy.compute_dtype = DType::kBF16;
  const std::vector<GroupMember> members = {{"a.n", "g", DType::kF32, DType::kF32, true},
                                            {"b.w", "g", DType::kF32, DType::kBF16, true}};
  const Errors errors = check_groups(policy, members);
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_NE(errors.front().remedy.find("compute_record"), std::string::npos) << errors.front().text();
  EXPECT_EQ(errors.front().message.find("forward would fail"), std::string::npos) << errors.front().message;
  EXPECT_NE(errors.front().remedy.find("pipeline stages"), std::string::npos) << errors.front().text();
}

}  // namespace
}  // namespace lading::policy
