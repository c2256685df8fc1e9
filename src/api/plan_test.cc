#include "lading/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "api/layout_words.h"
#include "lading/sample.h"
#include "support/by_strategy.h"
#include "support/temp_dir.h"

namespace lading {
namespace {

using test::by_strategy;
using ::testing::HasSubstr;

class PlanTest : public ::testing::Test {
 protected:
  void SetUp() override {
    request_.checkpoint.path = dir_.path("sample");
    ASSERT_TRUE(write_sample_checkpoint(request_.checkpoint.path).has_value());
  }

  Refusal refusal() {
    auto made = make_plan(request_);
    EXPECT_FALSE(made.has_value());
    return made ? Refusal{} : made.error();
  }

  test::TempDir dir_;
  PlanRequest request_;
};

TEST_F(PlanTest, TheCheckpointItselfIsTheModel) {
  const auto report = make_plan(request_);
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->rank_count, 1U);
  EXPECT_EQ(report->tensors.size(), 22U);
  ASSERT_EQ(report->ranks.size(), 1U);
  EXPECT_EQ(report->ranks[0].owned_bytes, 254'472U);
  EXPECT_EQ(report->bytes_proved, 254'472U);
  std::uint64_t local = 0;
  for (const PlannedTensor& tensor : report->tensors) local += tensor.local_bytes;
  EXPECT_EQ(local, 254'472U);
  EXPECT_EQ(report->digest.size(), 32U);
}

TEST_F(PlanTest, RanksThatAskForThemselvesAgreeAndAddUp) {
  request_.layout = by_strategy("fsdp2+tp", "dp=4,tp=2");
  request_.ranks.reset();
  const auto all = make_plan(request_);
  ASSERT_TRUE(all.has_value());
  ASSERT_EQ(all->ranks.size(), 8U);
  for (std::uint64_t rank = 0; rank < 8; ++rank) {
    request_.ranks = {{rank}};
    const auto one = make_plan(request_);
    ASSERT_TRUE(one.has_value());
    EXPECT_EQ(one->digest, all->digest);
    EXPECT_EQ(one->ranks[0].rank, rank);
    EXPECT_EQ(one->ranks[0].owned_bytes, all->ranks[rank].owned_bytes);
    EXPECT_EQ(plan_json(*one), plan_json(*make_plan(request_))) << "the same bytes every time";
  }
}

TEST_F(PlanTest, InputsThatMatterChangeTheDigest) {
  const std::string plain = make_plan(request_)->digest;
  request_.policy = Document::text(R"({"schema": "lading.policy/1", "dtype": "F32"})");
  const std::string wider = make_plan(request_)->digest;
  EXPECT_NE(plain, wider);
  request_.policy = Document::text(R"({"schema": "lading.policy/1", "seed": 1})");
  EXPECT_NE(make_plan(request_)->digest, plain);
  request_.policy = Document::text(R"({"schema": "lading.policy/1"})");
  EXPECT_EQ(make_plan(request_)->digest, plain);
  request_.layout = by_strategy("ddp", "dp=2");
  EXPECT_NE(make_plan(request_)->digest, plain);
}

TEST_F(PlanTest, DocumentsComeFromFilesToo) {
  request_.policy = Document::file(dir_.write("p.json", R"({"schema": "lading.policy/1", "dtype": "F32"})"));
  const auto report = make_plan(request_);
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->tensors[0].storage, DType::kF32);
  dir_.link("link.json", "p.json");
  request_.policy = Document::file(dir_.path("link.json"));
  EXPECT_TRUE(make_plan(request_).has_value()) << "the user's word: links are followed";
}

TEST_F(PlanTest, ProblemsOfAllDocumentsAreToldAtOnceWithFileAndPath) {
  request_.policy = Document::file(dir_.write("p.json", R"({"schema": "lading.policy/1", "seed": -1, "x": 0})"));
  request_.mapping = Document::text("{");
  request_.skeleton = Document::file(dir_.path("nothing.json"));
  const Refusal refused = refusal();
  EXPECT_EQ(refused.stage, Stage::kDocuments);
  EXPECT_EQ(refused.exit_code(), Exit::kPlan);
  std::string text;
  for (const Error& error : refused.problems) text += error.text() + "\n";
  for (const char* part : {"p.json", "$.seed", "$.x", "mapping (text)", "json_syntax", "nothing.json", "not_found"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST_F(PlanTest, ADocumentThatIsTooLargeIsRefusedUnread) {
  const std::string path = dir_.write("p.json", "");
  std::filesystem::resize_file(path, 100'000'001);
  request_.policy = Document::file(path);
  EXPECT_THAT(refusal().problems.front().text(), HasSubstr("too large"));
  request_.policy = Document::file(dir_.path());
  EXPECT_EQ(refusal().stage, Stage::kDocuments) << "a directory";
}

TEST_F(PlanTest, ARefusedCheckpointIsToldBesideTheDocuments) {
  request_.checkpoint.path = dir_.path("nothing");
  request_.policy = Document::text("{}");
  const Refusal refused = refusal();
  EXPECT_EQ(refused.stage, Stage::kCheckpoint);
  EXPECT_EQ(refused.exit_code(), Exit::kCheckpoint);
  EXPECT_EQ(refused.problems.size(), 2U);
}

TEST_F(PlanTest, ModelAndCheckpointThatDoNotGoTogetherAreFour) {
  request_.skeleton = Document::text(
      R"({"schema": "lading.skeleton/1", "tensors": [
          {"name": "model.embed_tokens.weight", "kind": "parameter", "shape": [512, 64], "dtype": "BF16"},
          {"name": "model.norm.weight", "kind": "parameter", "shape": [65], "dtype": "BF16"},
          {"name": "absent", "kind": "parameter", "shape": [2], "dtype": "BF16"}]})");
  const Refusal refused = refusal();
  EXPECT_EQ(refused.stage, Stage::kPlanning);
  EXPECT_EQ(refused.exit_code(), Exit::kPlan);
  EXPECT_EQ(refused.problems.size(), 1U + 1U + 20U) << "shape, missing, and every unexpected key";
}

TEST_F(PlanTest, RequestsWithoutSenseAreTwo) {
  const auto code_of = [&](const layout::ByStrategy& wanted, std::optional<std::vector<std::uint64_t>> ranks = {{0}}) {
    request_.layout = wanted;
    request_.ranks = std::move(ranks);
    const auto made = make_plan(request_);
    return made ? Exit::kOk : made.error().exit_code();
  };
  EXPECT_EQ(code_of(by_strategy("single"), {{1}}), Exit::kUsage);
  EXPECT_EQ(code_of(by_strategy("ddp", "dp=9999"), std::nullopt), Exit::kUsage);
  layout::ByStrategy nobody = by_strategy("ddp");
  nobody.mesh = layout::Mesh({{"dp", 0}});
  EXPECT_EQ(code_of(nobody), Exit::kUsage);
  EXPECT_EQ(code_of(by_strategy("tp", "dp=2")), Exit::kPlan) << "the layout is refused";
  EXPECT_EQ(code_of(by_strategy("zero3", "dp=99999999")), Exit::kOk) << "one rank of many";
}

TEST(LayoutWords, WordsThatAreUnknownOrContradictEachOtherAreRefused) {
  const auto problems_of = [](auto edit) {
    LayoutWords words;
    edit(words);
    const auto made = layout_of(words);
    return made ? 0U : made.error().size();
  };
  const auto document = Document::text("{}");
  EXPECT_EQ(problems_of([](LayoutWords&) {}), 0U);
  EXPECT_EQ(problems_of([](LayoutWords& w) { w.mesh = "dp=2", w.strategy = "ddp", w.device = "cuda:1"; }), 0U);
  EXPECT_EQ(problems_of([](LayoutWords& w) { w.mesh = "dp=2"; }), 1U) << "no strategy";
  EXPECT_EQ(problems_of([](LayoutWords& w) {
              w.mesh = "dp=two", w.strategy = "magic", w.device = "tpu", w.tp_plan = {{"*", "sideways"}};
            }),
            4U);
  EXPECT_EQ(problems_of([&](LayoutWords& w) { w.layout = document; }), 0U);
  EXPECT_EQ(problems_of([&](LayoutWords& w) { w.layout = document, w.mesh = "dp=2"; }), 1U);
  EXPECT_EQ(problems_of([&](LayoutWords& w) { w.layout = document, w.device = "cpu"; }), 1U);
}

TEST_F(PlanTest, EveryStrategyPlansTheSample) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "single"}, {"dp=3", "ddp"},           {"dp=3", "fsdp2"}, {"replicate=2,shard=3", "hsdp"},
      {"tp=3", "tp"}, {"dp=3,tp=2", "fsdp2+tp"}, {"dp=7", "zero3"}};
  for (const auto& [mesh, strategy] : cases) {
    request_.layout = by_strategy(strategy, mesh);
    request_.ranks.reset();
    const auto report = make_plan(request_);
    EXPECT_TRUE(report.has_value()) << strategy << ": " << report.error().problems.front().text();
  }
}

std::string device_of(const PlanReport& report) { return report.ranks[0].device_bytes.front().first.text(); }

TEST_F(PlanTest, R34_DevicesAreCountedByRankAndToldSo) {
  layout::ByStrategy wanted = by_strategy("ddp", "dp=12", "cuda");
  request_.layout = wanted;
  request_.ranks = {{9}};
  const auto usual = make_plan(request_);
  ASSERT_TRUE(usual.has_value());
  EXPECT_EQ(device_of(*usual), "cuda:1") << "nodes of 8";
  std::string told;
  for (const Error& warning : usual->warnings) told += warning.text() + "\n";
  EXPECT_THAT(told, HasSubstr("rank r uses cuda:(r % 8)"));
  wanted.device.per_node = 4;
  request_.layout = wanted;
  request_.ranks = {{7}};
  EXPECT_EQ(device_of(*make_plan(request_)), "cuda:3");
  request_.layout = by_strategy("ddp", "dp=4", "cuda");
  request_.ranks = {{3}};
  EXPECT_EQ(device_of(*make_plan(request_)), "cuda:3") << "one node";
}

TEST_F(PlanTest, R34_OneDeviceIsForOneRank) {
  request_.layout = by_strategy("single", "", "cuda:5");
  EXPECT_EQ(device_of(*make_plan(request_)), "cuda:5");
  request_.layout = by_strategy("ddp", "dp=2", "cuda:5");
  for (const auto& ranks : {std::optional<std::vector<std::uint64_t>>(), {{0, 1}}}) {
    request_.ranks = ranks;
    EXPECT_EQ(refusal().exit_code(), Exit::kUsage);
    EXPECT_THAT(refusal().problems.front().text(), HasSubstr("--rank"));
  }
  request_.ranks = {{0}};
  layout::ByStrategy wanted = by_strategy("ddp", "dp=2");
  request_.layout = wanted;
  EXPECT_EQ(device_of(*make_plan(request_)), "cpu");
  wanted.device.per_node = 2;
  request_.layout = wanted;
  EXPECT_EQ(refusal().exit_code(), Exit::kUsage) << "of cuda only";
  wanted = by_strategy("ddp", "dp=2", "cuda");
  wanted.device.per_node = 0;
  request_.layout = wanted;
  EXPECT_EQ(refusal().exit_code(), Exit::kUsage);
  wanted = by_strategy("ddp", "dp=2", "cuda:5");
  wanted.device.index = 128;
  request_.layout = wanted;
  EXPECT_EQ(refusal().exit_code(), Exit::kUsage) << "torch has no such index";
}

// Processes that each see one GPU call it cuda:0.
TEST_F(PlanTest, R34_OneRankOfAMeshHasTheDeviceThatItsProcessNames) {
  for (const char* device : {"cuda:0", "cuda:5"}) {
    request_.layout = by_strategy("fsdp2", "dp=4", device);
    std::set<std::string> digests;
    for (const std::uint64_t rank : {0U, 3U}) {
      request_.ranks = {{rank}};
      const auto report = make_plan(request_);
      ASSERT_TRUE(report.has_value()) << report.error().problems.front().text();
      EXPECT_EQ(device_of(*report), device);
      digests.insert(report->digest);
      std::string told;
      for (const Error& warning : report->warnings) told += warning.text() + "\n";
      EXPECT_THAT(told, HasSubstr(std::string("every rank uses ") + device));
    }
    EXPECT_EQ(digests.size(), 1U) << "ranks that say the same agree";
  }
  request_.layout = by_strategy("fsdp2+tp", "dp=1000,tp=1001", "cuda:5");
  EXPECT_EQ(refusal().exit_code(), Exit::kUsage) << "no list of so many";
}

TEST_F(PlanTest, R11_BytesThatNoRankReadsAreCountedIfAllWereWorkedOut) {
  request_.layout = by_strategy("fsdp2", "dp=2");
  EXPECT_FALSE(make_plan(request_)->unread_bytes.has_value()) << "rank 0 alone";
  request_.ranks.reset();
  const auto all = make_plan(request_);
  EXPECT_EQ(all->unread_bytes, 0U);
  EXPECT_THAT(plan_json(*all), HasSubstr("\"unread_bytes\": 0"));
}

TEST_F(PlanTest, R52_AStrategyPutsWhatSharesAParametersStorageWhereItIs) {
  request_.skeleton = Document::text(
      R"({"schema": "lading.skeleton/1", "tensors": [
          {"name": "cache", "kind": "attribute", "shape": [512, 64], "dtype": "BF16"},
          {"name": "model.embed_tokens.weight", "kind": "parameter", "shape": [512, 64], "dtype": "BF16"}],
          "ties": [["cache", "model.embed_tokens.weight"]]})");
  request_.policy = Document::text(R"({"schema": "lading.policy/1", "unexpected": "report"})");
  request_.layout = by_strategy("fsdp2", "dp=2");
  const auto report = make_plan(request_);
  ASSERT_TRUE(report.has_value()) << report.error().problems.front().text();
  EXPECT_EQ(report->ranks[0].owned_bytes, 512U * 64U * 2U / 2U);
}

TEST_F(PlanTest, ExplainAndDiff) {
  const auto report = make_plan(request_);
  ASSERT_TRUE(report.has_value());
  EXPECT_GT(explain(*report, "model.norm.weight")->size(), 5U);
  const auto unknown = explain(*report, "model.norm.wieght");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_EQ(unknown.error().exit_code(), Exit::kUsage);
  EXPECT_THAT(unknown.error().problems.front().text(), HasSubstr("\"model.norm.weight\""));

  EXPECT_TRUE(diff(*report, Document::text(plan_json(*report)))->changes.empty());
  request_.policy = Document::text(R"({"schema": "lading.policy/1", "dtype": "F32"})");
  const auto wider = make_plan(request_);
  EXPECT_FALSE(diff(*wider, Document::text(plan_json(*report)))->changes.empty());
  EXPECT_EQ(diff(*wider, Document::text("{}")).error().exit_code(), Exit::kPlan);
}

}  // namespace
}  // namespace lading
