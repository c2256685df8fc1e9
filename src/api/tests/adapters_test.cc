// Adapters through the public API and the C ABI: a base checkpoint and two adapters, all with a key "w" in a file
// "model.safetensors".
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lading/lading_c.h"
#include "lading/load.h"
#include "lading/verify.h"
#include "support/by_strategy.h"
#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace lading {
namespace {

using ::testing::HasSubstr;

std::string file_of(const std::vector<float>& values) {
  const std::string data(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  return test::safetensors_bytes(R"({"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", data);
}

constexpr const char* kSkeleton = R"({"schema": "lading.skeleton/1", "tensors": [
    {"name": "w", "kind": "parameter", "shape": [4], "dtype": "F32"},
    {"name": "one", "kind": "parameter", "shape": [4], "dtype": "F32", "adapter": true},
    {"name": "two", "kind": "parameter", "shape": [4], "dtype": "F32", "adapter": true}]})";

class AdaptersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_.write("base/model.safetensors", file_of({1, 2, 3, 4}));
    dir_.write("one/model.safetensors", file_of({10, 20, 30, 40}));
    dir_.write("two/model.safetensors", file_of({100, 200, 300, 400}));
    request_.plan.checkpoint.path = dir_.path("base");
    request_.plan.skeleton = Document::text(kSkeleton);
    request_.plan.adapters = {{{dir_.path("one")}, {{"w", "one"}}}, {{dir_.path("two")}, {{"w", "two"}}}};
    request_.plan.layout = test::by_strategy("fsdp2", "dp=2");
    request_.plan.ranks.reset();
    request_.poison = PoisonFirst::kYes;
  }

  std::string ledger() {
    auto report = materialize(request_);
    if (report) return ledger_json(*report);
    ADD_FAILURE() << report.error().problems.front().text();
    return {};
  }

  [[nodiscard]] VerifyRequest verification(const std::string& ledger) const {
    VerifyRequest request;
    request.checkpoint.path = dir_.path("base");
    request.adapters = {{dir_.path("one")}, {dir_.path("two")}};
    request.ledgers = {Document::text(ledger)};
    return request;
  }

  test::TempDir dir_;
  LoadRequest request_;
};

TEST_F(AdaptersTest, R65_EachTensorHasTheBytesOfItsOwnCheckpointAndARankReadsItsPart) {
  const auto report = materialize(request_);
  ASSERT_TRUE(report) << report.error().problems.front().text();
  std::map<std::string, std::vector<float>> found;
  std::map<std::string, std::uint32_t> checkpoints;
  for (const LoadedTensor& tensor : report->tensors) {
    std::vector<float>& values = found[tensor.destination.name];
    values.resize(values.size() + 2);
    ASSERT_EQ(tensor.memory.size(), 8U);
    std::memcpy(&values[values.size() - 2], tensor.memory.data(), 8);
    EXPECT_EQ(tensor.destination.provenance, Provenance::kFile);
    checkpoints[tensor.destination.name] = tensor.destination.checkpoint;
  }
  EXPECT_EQ(found["w"], (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(found["one"], (std::vector<float>{10, 20, 30, 40}));
  EXPECT_EQ(found["two"], (std::vector<float>{100, 200, 300, 400}));
  EXPECT_EQ(checkpoints, (std::map<std::string, std::uint32_t>{{"w", 0}, {"one", 1}, {"two", 2}}));
  for (const RankTotals& rank : report->plan.ranks) EXPECT_EQ(rank.read_bytes, 24U) << "half of three tensors";
  EXPECT_EQ(report->read_bytes, 48U);
}

TEST_F(AdaptersTest, R62_VerifyFindsAFlippedByteOfAnAdapter) {
  const std::string text = ledger();
  const auto good = verify(verification(text));
  ASSERT_TRUE(good) << good.error().problems.front().text();
  EXPECT_TRUE(good->differences.empty()) << good->differences.front().text();
  EXPECT_EQ(good->tensors_verified, 3U);
  EXPECT_TRUE(good->not_verified.empty());
  dir_.write("two/model.safetensors", file_of({100, 200, 300, 401}));
  const auto bad = verify(verification(text));
  ASSERT_TRUE(bad);
  ASSERT_EQ(bad->differences.size(), 1U);
  EXPECT_EQ(bad->differences.front().code, Code::kValuesDiffer);
  EXPECT_EQ(bad->differences.front().tensor, "two");
  EXPECT_EQ(bad->tensors_verified, 2U);
}

TEST_F(AdaptersTest, VerifyTakesAPathForEachAdapterInTheirOrder) {
  const std::string text = ledger();
  VerifyRequest swapped = verification(text);
  std::swap(swapped.adapters[0], swapped.adapters[1]);
  const auto found = verify(swapped);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->differences.size(), 2U * 2U) << "two tensors on two ranks";
  VerifyRequest without = verification(text);
  without.adapters.clear();
  const auto refused = verify(without);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().exit_code(), Exit::kUsage);
  EXPECT_THAT(refused.error().problems.front().text(), HasSubstr("--adapter PATH"));
}

TEST_F(AdaptersTest, R65_AnAdapterIsOpenedBeneathItsOwnAnchor) {
  dir_.write("elsewhere.safetensors", file_of({7, 7, 7, 7}));
  std::filesystem::remove(dir_.path("one/model.safetensors"));
  std::filesystem::create_symlink("../elsewhere.safetensors", dir_.path("one/model.safetensors"));
  const auto refused = make_plan(request_.plan);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().stage, Stage::kCheckpoint);
  request_.plan.adapters[0].checkpoint.root = dir_.path();
  EXPECT_TRUE(make_plan(request_.plan)) << "the adapter's own root allows it";
}

TEST_F(AdaptersTest, TheContentsOfAllFilesCount) {
  const auto before = make_plan(request_.plan);
  ASSERT_TRUE(before);
  const auto word = sampled_contents(*before);
  dir_.write("one/model.safetensors", file_of({10, 20, 30, 41}));
  const auto after = make_plan(request_.plan);
  ASSERT_TRUE(after);
  EXPECT_EQ(before->digest, after->digest);
  EXPECT_NE(*word, *sampled_contents(*after));
}

TEST_F(AdaptersTest, TheyNeedACheckpointAndASkeleton) {
  request_.plan.skeleton.reset();
  const auto refused = make_plan(request_.plan);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().exit_code(), Exit::kUsage);
}

TEST_F(AdaptersTest, ThroughTheCAbi) {
  const std::string begin = R"({"schema": "lading.request/1", "checkpoint": ")" + dir_.path("base") +
                            R"(", "skeleton": )" + std::string(kSkeleton) + R"(, "adapters": [)";
  const std::string one = R"({"checkpoint": ")" + dir_.path("one") + R"(", "mapping": {"w": "one"}})";
  const std::string two = R"({"checkpoint": ")" + dir_.path("two") + R"(", "mapping": {"w": "two"}})";
  const auto answer = [](const std::string& request) {
    lading_handle* handle = lading_plan(request.c_str());
    std::string text = lading_text(handle, nullptr);
    lading_free(handle);
    return text;
  };
  EXPECT_THAT(answer(begin + one + ", " + two + "]}"), HasSubstr(R"("provenance": "file", "checkpoint": 2)"));
  EXPECT_THAT(answer(begin + R"({"checkpoint": "x", "mapping": {"w": 1}}]})"), HasSubstr("$.adapters[0].mapping"));
  EXPECT_THAT(answer(begin + R"({"checkpoint": "x", "names": {}}]})"), HasSubstr("$.adapters[0].names: unknown field"));
  EXPECT_THAT(answer(begin + R"({}]})"), HasSubstr("$.adapters[0].checkpoint"));
}

}  // namespace
}  // namespace lading
