#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "policy/policy.h"

namespace lading::policy {
namespace {

using ::testing::HasSubstr;
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
