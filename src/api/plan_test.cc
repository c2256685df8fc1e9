#include "lading/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lading/sample.h"
#include "support/temp_dir.h"

namespace lading {
namespace {

using ::testing::HasSubstr;

class PlanTest : public ::testing::Test {
 protected:
  void SetUp() override {
    request_.checkpoint = dir_.path("sample");
    ASSERT_TRUE(write_sample_checkpoint(request_.checkpoint).has_value());
  }

  PlanRefusal refusal() {
    auto made = make_plan(request_);
    EXPECT_FALSE(made.has_value());
    return made ? PlanRefusal{} : made.error();
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
  request_.mesh = "dp=4,tp=2";
  request_.strategy = "fsdp2+tp";
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
  request_.policy = PlanDocument::text(R"({"schema": "lading.policy/1", "dtype": "F32"})");
  const std::string wider = make_plan(request_)->digest;
  EXPECT_NE(plain, wider);
  request_.policy = PlanDocument::text(R"({"schema": "lading.policy/1", "seed": 1})");
  EXPECT_NE(make_plan(request_)->digest, plain);
  request_.policy = PlanDocument::text(R"({"schema": "lading.policy/1"})");
  EXPECT_EQ(make_plan(request_)->digest, plain);
  request_.mesh = "dp=2";
  request_.strategy = "ddp";
  EXPECT_NE(make_plan(request_)->digest, plain);
}

TEST_F(PlanTest, DocumentsComeFromFilesToo) {
  request_.policy = PlanDocument::file(dir_.write("p.json", R"({"schema": "lading.policy/1", "dtype": "F32"})"));
  const auto report = make_plan(request_);
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->tensors[0].storage, DType::kF32);
  dir_.link("link.json", "p.json");
  request_.policy = PlanDocument::file(dir_.path("link.json"));
  EXPECT_TRUE(make_plan(request_).has_value()) << "the user's word: links are followed";
}

TEST_F(PlanTest, ProblemsOfAllDocumentsAreToldAtOnceWithFileAndPath) {
  request_.policy = PlanDocument::file(dir_.write("p.json", R"({"schema": "lading.policy/1", "seed": -1, "x": 0})"));
  request_.mapping = PlanDocument::text("{");
  request_.skeleton = PlanDocument::file(dir_.path("nothing.json"));
  const PlanRefusal refused = refusal();
  EXPECT_EQ(refused.stage, PlanStage::kDocuments);
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
  request_.policy = PlanDocument::file(path);
  EXPECT_THAT(refusal().problems.front().text(), HasSubstr("too large"));
  request_.policy = PlanDocument::file(dir_.path());
  EXPECT_EQ(refusal().stage, PlanStage::kDocuments) << "a directory";
}

TEST_F(PlanTest, ARefusedCheckpointIsToldBesideTheDocuments) {
  request_.checkpoint = dir_.path("nothing");
  request_.policy = PlanDocument::text("{}");
  const PlanRefusal refused = refusal();
  EXPECT_EQ(refused.stage, PlanStage::kCheckpoint);
  EXPECT_EQ(refused.exit_code(), Exit::kCheckpoint);
  EXPECT_EQ(refused.problems.size(), 2U);
}

TEST_F(PlanTest, ModelAndCheckpointThatDoNotGoTogetherAreFour) {
  request_.skeleton = PlanDocument::text(
      R"({"schema": "lading.skeleton/1", "tensors": [
          {"name": "model.embed_tokens.weight", "kind": "parameter", "shape": [512, 64], "dtype": "BF16"},
          {"name": "model.norm.weight", "kind": "parameter", "shape": [65], "dtype": "BF16"},
          {"name": "absent", "kind": "parameter", "shape": [2], "dtype": "BF16"}]})");
  const PlanRefusal refused = refusal();
  EXPECT_EQ(refused.stage, PlanStage::kPlanning);
  EXPECT_EQ(refused.exit_code(), Exit::kPlan);
  EXPECT_EQ(refused.problems.size(), 1U + 1U + 20U) << "shape, missing, and every unexpected key";
}

TEST_F(PlanTest, RequestsWithoutSenseAreTwo) {
  const auto code_of = [&](auto edit) {
    PlanRequest request = request_;
    edit(request);
    const auto made = make_plan(request);
    return made ? Exit::kOk : made.error().exit_code();
  };
  EXPECT_EQ(code_of([](PlanRequest& r) { r.mesh = "dp=2"; }), Exit::kUsage);
  EXPECT_EQ(code_of([](PlanRequest& r) { r.mesh = "dp=two", r.strategy = "ddp"; }), Exit::kUsage);
  EXPECT_EQ(code_of([](PlanRequest& r) { r.strategy = "magic"; }), Exit::kUsage);
  EXPECT_EQ(code_of([](PlanRequest& r) { r.tp_plan = {{"*", "sideways"}}; }), Exit::kUsage);
  EXPECT_EQ(code_of([](PlanRequest& r) { r.ranks = {{1}}; }), Exit::kUsage);
  EXPECT_EQ(code_of([](PlanRequest& r) { r.mesh = "dp=2", r.layout = PlanDocument::text("{}"); }), Exit::kUsage);
  EXPECT_EQ(code_of([](PlanRequest& r) { r.mesh = "dp=9999", r.strategy = "ddp", r.ranks.reset(); }), Exit::kUsage);
  EXPECT_EQ(code_of([](PlanRequest& r) { r.mesh = "dp=2", r.strategy = "tp"; }), Exit::kPlan)
      << "the layout is refused";
  EXPECT_EQ(code_of([](PlanRequest& r) { r.mesh = "dp=99999999", r.strategy = "zero3"; }), Exit::kOk)
      << "one rank of many";
}

TEST_F(PlanTest, EveryStrategyPlansTheSample) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "single"}, {"dp=3", "ddp"},           {"dp=3", "fsdp2"}, {"replicate=2,shard=3", "hsdp"},
      {"tp=3", "tp"}, {"dp=3,tp=2", "fsdp2+tp"}, {"dp=7", "zero3"}};
  for (const auto& [mesh, strategy] : cases) {
    request_.mesh = mesh;
    request_.strategy = strategy;
    request_.ranks.reset();
    const auto report = make_plan(request_);
    EXPECT_TRUE(report.has_value()) << strategy << ": " << report.error().problems.front().text();
  }
}

TEST_F(PlanTest, R34_DevicesAreCountedByRankAndToldSo) {
  request_.mesh = "dp=12";
  request_.strategy = "ddp";
  request_.device = "cuda";
  request_.ranks = {{9}};
  const auto usual = make_plan(request_);
  ASSERT_TRUE(usual.has_value());
  EXPECT_EQ(usual->ranks[0].device_bytes.front().first, "cuda:1") << "nodes of 8";
  std::string told;
  for (const Error& warning : usual->warnings) told += warning.text() + "\n";
  EXPECT_THAT(told, HasSubstr("rank r has cuda:(r % 8)"));
  request_.devices_per_node = 4;
  request_.ranks = {{7}};
  EXPECT_EQ(make_plan(request_)->ranks[0].device_bytes.front().first, "cuda:3");
  request_.mesh = "dp=4";
  request_.devices_per_node.reset();
  request_.ranks = {{3}};
  EXPECT_EQ(make_plan(request_)->ranks[0].device_bytes.front().first, "cuda:3") << "one node";
}

TEST_F(PlanTest, R34_OneDeviceIsForOneRank) {
  request_.device = "cuda:5";
  EXPECT_EQ(make_plan(request_)->ranks[0].device_bytes.front().first, "cuda:5");
  request_.mesh = "dp=2";
  request_.strategy = "ddp";
  for (const auto& ranks : {std::optional<std::vector<std::uint64_t>>(), {{0, 1}}}) {
    request_.ranks = ranks;
    EXPECT_EQ(refusal().exit_code(), Exit::kUsage);
    EXPECT_THAT(refusal().problems.front().text(), HasSubstr("--rank"));
  }
  request_.ranks = {{0}};
  request_.device = "cpu";
  EXPECT_EQ(make_plan(request_)->ranks[0].device_bytes.front().first, "cpu");
  request_.devices_per_node = 2;
  EXPECT_EQ(refusal().exit_code(), Exit::kUsage) << "of cuda only";
  request_.device = "tpu";
  request_.devices_per_node.reset();
  EXPECT_EQ(refusal().exit_code(), Exit::kUsage);
}

// Processes that each see one GPU call it cuda:0.
TEST_F(PlanTest, R34_OneRankOfAMeshHasTheDeviceThatItsProcessNames) {
  request_.mesh = "dp=4";
  request_.strategy = "fsdp2";
  for (const char* device : {"cuda:0", "cuda:5"}) {
    request_.device = device;
    std::set<std::string> digests;
    for (const std::uint64_t rank : {0U, 3U}) {
      request_.ranks = {{rank}};
      const auto report = make_plan(request_);
      ASSERT_TRUE(report.has_value()) << report.error().problems.front().text();
      EXPECT_EQ(report->ranks[0].device_bytes.front().first, device);
      digests.insert(report->digest);
      std::string told;
      for (const Error& warning : report->warnings) told += warning.text() + "\n";
      EXPECT_THAT(told, HasSubstr(std::string("every rank has ") + device));
    }
    EXPECT_EQ(digests.size(), 1U) << "ranks that say the same agree";
  }
  request_.mesh = "dp=1000,tp=1001";
  request_.strategy = "fsdp2+tp";
  EXPECT_EQ(refusal().exit_code(), Exit::kUsage) << "no list of so many";
}

TEST_F(PlanTest, R11_BytesThatNoRankReadsAreCountedIfAllWereWorkedOut) {
  request_.mesh = "dp=2";
  request_.strategy = "fsdp2";
  EXPECT_FALSE(make_plan(request_)->unread_bytes.has_value()) << "rank 0 alone";
  request_.ranks.reset();
  const auto all = make_plan(request_);
  EXPECT_EQ(all->unread_bytes, 0U);
  EXPECT_THAT(plan_json(*all), HasSubstr("\"unread_bytes\": 0"));
}

TEST_F(PlanTest, R52_AStrategyPutsWhatSharesAParametersStorageWhereItIs) {
  request_.skeleton = PlanDocument::text(
      R"({"schema": "lading.skeleton/1", "tensors": [
          {"name": "cache", "kind": "attribute", "shape": [512, 64], "dtype": "BF16"},
          {"name": "model.embed_tokens.weight", "kind": "parameter", "shape": [512, 64], "dtype": "BF16"}],
          "ties": [["cache", "model.embed_tokens.weight"]]})");
  request_.policy = PlanDocument::text(R"({"schema": "lading.policy/1", "unexpected": "report"})");
  request_.mesh = "dp=2";
  request_.strategy = "fsdp2";
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

  EXPECT_TRUE(diff(*report, PlanDocument::text(plan_json(*report)))->changes.empty());
  request_.policy = PlanDocument::text(R"({"schema": "lading.policy/1", "dtype": "F32"})");
  const auto wider = make_plan(request_);
  EXPECT_FALSE(diff(*wider, PlanDocument::text(plan_json(*report)))->changes.empty());
  EXPECT_EQ(diff(*wider, PlanDocument::text("{}")).error().exit_code(), Exit::kPlan);
}

}  // namespace
}  // namespace lading
