#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/json_reader.h"
#include "plan/plan.h"
#include "plan/plan_diff.h"
#include "plan/plan_for_tests.h"
#include "plan/totals.h"

namespace lading::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(PlanJson, TheSamePlanGivesTheSameBytes) {
  EXPECT_EQ(plan_json(plan_of_everything()), plan_json(plan_of_everything()));
}

TEST(PlanJson, AnEmptyPlanIsAPlan) {
  const JsonDocument document = parsed(plan_json({}));
  EXPECT_EQ(document.root().find("rank_count")->as_uint64(), 1U);
  EXPECT_EQ(document.root().find("tensors")->size(), 0U);
}

TEST(PlanJson, SaysAllOfIt) {
  const Plan plan = plan_of_everything();
  const std::string text = plan_json(plan);
  const JsonDocument document = parsed(text);
  EXPECT_EQ(document.root().find("schema")->text(), "lading.plan/1");
  EXPECT_EQ(document.root().find("ok")->kind(), JsonKind::kTrue);
  EXPECT_EQ(document.root().find("digest")->text(), digest(plan));
  EXPECT_EQ(document.root().find("tensors")->size(), plan.statements.size());
  for (const char* part : {
           R"({"key": "k.2", "file": "b.safetensors", "bytes": [148, 244], "dtype": "F32", "shape": [4, 6]})",
           R"({"pad": {"dim": 0, "end": 8, "fill": -1.5, "of": {"permute": {"order": [0, 1], "of": )"
           R"({"concat": {"dim": 0, "parts": [{"slice": {"dim": 0, "begin": 0, "end": 2, "of": "k.0"}}, )"
           R"({"reshape": {"shape": [4, 6], "of": "k.1"}}]}}}}}})",
           R"({"name": "secondary", "cuts": [{"shard": 0, "axes": ["tp"]}, {"flat": {}, "axes": ["dp"]}]})",
           R"("recipe": {"kind": "call", "inputs": ["a.built"]})",
           R"("recipe": {"kind": "fill", "value": 0.1})",
           R"("recipe": {"kind": "normal", "mean": 0, "std": 1, "zero_row": 2})",
           R"("kept_device": "cuda:1")",
           R"("alias_of": "f.tied")",
           R"({"source": "k.2", "from": 148, "to": 0, "elems": 12, "loops": [[2, 48, 48]]})",
           R"({"fill": 0.5, "to": 96, "elems": 4})",
           R"({"file": "a.safetensors", "begin": 100, "size": 4, "count": 3, "stride": 8, "for": [[1, 0, 1]]})",
           R"({"rank": 3, "group": 0, "device": "cuda:3", "read_bytes": 108)",
           R"("device_bytes": {"cpu": 64, "cuda:3": 160})",
           R"({"key": "old", "rule": "rule"})",
           R"("message": "beware")",
       }) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(PlanJson, NamesFromFilesStayJson) {
  Plan plan = plan_of_everything();
  const std::string odd = "a\"\\\n\x1b\xFF";
  plan.statements[0].name = plan.sources[0].key = plan.files[0].name = plan.unexpected_keys[0] = odd;
  const std::string text = plan_json(plan);
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  parsed(text);
}

TEST(Totals, ASharedBufferCountsOnce) {
  const auto bytes = device_bytes(plan_of_everything().ranks[0]);
  EXPECT_EQ(bytes.at("cuda:3"), 96U + 64U);
  EXPECT_EQ(bytes.at("cpu"), 64U);
}

PlanDifference diff_of(const Plan& before, const Plan& after) {
  auto diff = diff_plans(parsed(plan_json(before)), parsed(plan_json(after)));
  EXPECT_TRUE(diff.has_value());
  return *std::move(diff);
}

TEST(PlanDiff, EqualPlansHaveNone) {
  const PlanDifference diff = diff_of(plan_of_everything(), plan_of_everything());
  EXPECT_TRUE(diff.changes.empty());
  EXPECT_TRUE(diff.ranks_not_compared.empty());
}

TEST(PlanDiff, TensorsComeAndGo) {
  Plan after = plan_of_everything();
  after.statements[2].name = "c.other";
  const PlanDifference diff = diff_of(plan_of_everything(), after);
  ASSERT_EQ(diff.changes.size(), 2U);
  EXPECT_EQ(diff.changes[0].name, "c.fill");
  EXPECT_TRUE(diff.changes[0].before.has_value());
  EXPECT_FALSE(diff.changes[0].after.has_value());
  EXPECT_EQ(diff.changes[1].name, "c.other");
  EXPECT_FALSE(diff.changes[1].before.has_value());
  for (const PlanChange& change : diff.changes) {
    EXPECT_EQ(change.section, PlanSection::kTensor);
    EXPECT_EQ(change.field, "");
  }
}

TEST(PlanDiff, FieldsSayOldAndNew) {
  Plan after = plan_of_everything();
  after.seed = 6;
  after.statements[0].storage = DType::kF64;
  after.statements[0].reason = "reworded";
  after.sources[0].shape = {6, 4};
  after.files[1].size_bytes = 1;
  after.ranks[0].read_bytes = 1;
  after.ranks[0].destinations[0].transfers[0].target_begin_bytes = 4;
  const PlanDifference diff = diff_of(plan_of_everything(), after);
  std::vector<std::string> lines;
  for (const PlanChange& c : diff.changes) {
    lines.push_back(std::string(word(c.section)) + "|" + c.name + "|" + c.field + "|" + c.before.value_or("-") + "|" +
                    c.after.value_or("-"));
  }
  EXPECT_THAT(lines, ::testing::ElementsAre("plan||seed|5|6", "file|b.safetensors|size_bytes|2000|1",
                                            "source|k.0|shape|[4, 6]|[6, 4]",
                                            R"(tensor|a.built|storage_dtype|"F32"|"F64")", "rank|3|read_bytes|108|1",
                                            ::testing::HasSubstr("destination|rank 3, f.tied|transfers")));
}

TEST(PlanDiff, LongListsAreToldElementByElement) {
  Plan before = plan_of_everything();
  auto& transfers = before.ranks[0].destinations[0].transfers;
  transfers.assign(100, transfers[0]);
  Plan after = before;
  after.ranks[0].destinations[0].transfers[77].run_elems = 1;
  const PlanDifference diff = diff_of(before, after);
  ASSERT_EQ(diff.changes.size(), 1U);
  EXPECT_EQ(diff.changes[0].field, "transfers[77]");
}

TEST(PlanDiff, RanksOfOnePlanOnlyAreNoDifference) {
  Plan after = plan_of_everything();
  after.ranks.push_back(after.ranks[0]);
  after.ranks[1].rank = 0;
  const PlanDifference diff = diff_of(plan_of_everything(), after);
  EXPECT_TRUE(diff.changes.empty());
  EXPECT_EQ(diff.ranks_not_compared, (std::vector<std::uint64_t>{0}));
}

TEST(PlanDiff, WhatIsNoPlanIsRefused) {
  const JsonDocument plan = parsed(plan_json(plan_of_everything()));
  for (const char* text : {"[]", "{}", R"({"schema": "lading.policy/1"})",
                           R"({"schema": "lading.plan/1", "ok": false})", R"({"schema": "lading.plan/1", "ok": true})",
                           R"({"schema": "lading.plan/1", "ok": true, "files": [], "sources": [1], "tensors": [{}],
                               "ranks": [{"rank": []}]})"}) {
    const auto diff = diff_plans(parsed(text), plan);
    ASSERT_FALSE(diff.has_value()) << text;
    EXPECT_EQ(diff.error().front().code, Code::kSchema);
  }
}

TEST(PlanDiff, UnreadBytesAreKnownOfAllRanksOnly) {
  Plan one = plan_of_everything();
  Plan all = plan_of_everything();
  one.unread_bytes.reset();
  all.unread_bytes = 7;
  EXPECT_TRUE(diff_of(one, all).changes.empty()) << "other ranks were asked for, and nothing else is different";
  one.unread_bytes = 8;
  EXPECT_EQ(diff_of(one, all).changes.size(), 1U);
}

TEST(PlanDiff, AFileWithoutOkIsNotCalledRefused) {
  const auto diff = diff_plans(parsed(R"({"schema": "lading.plan/1"})"), parsed(plan_json(plan_of_everything())));
  ASSERT_FALSE(diff.has_value());
  EXPECT_THAT(diff.error().front().message, Not(HasSubstr("refused")));
}

}  // namespace
}  // namespace lading::plan
