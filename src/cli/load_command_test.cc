#include "cli/load_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json_reader.h"
#include "cli/progress.h"
#include "cli/run_for_tests.h"
#include "lading/sample.h"
#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace lading::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class LoadCommand : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(write_sample_checkpoint(sample()).has_value()); }

  [[nodiscard]] std::string sample() const { return dir_.path("sample"); }
  [[nodiscard]] std::string ledger() const { return dir_.path("ledger.json"); }

  test::TempDir dir_;
};

TEST_F(LoadCommand, SaysWhatWasLoaded) {
  const Ran ran = run_with({"load", sample()});
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.out, HasSubstr("loaded: 22 tensors on 1 rank"));
  EXPECT_THAT(ran.out, HasSubstr("254.47 kB"));
}

TEST_F(LoadCommand, R62_EveryLayoutHasTheFilesDigests) {
  for (const auto& [mesh, strategy] : std::vector<std::pair<std::string, std::string>>{{"", ""},
                                                                                       {"dp=3", "ddp"},
                                                                                       {"dp=5", "fsdp2"},
                                                                                       {"replicate=2,shard=3", "hsdp"},
                                                                                       {"tp=4", "tp"},
                                                                                       {"dp=4,tp=2", "fsdp2+tp"},
                                                                                       {"dp=7", "zero3"}}) {
    std::vector<std::string> arguments = {"load", sample(), "--ledger", ledger(), "--poison"};
    if (!mesh.empty()) arguments.insert(arguments.end(), {"--mesh", mesh, "--strategy", strategy});
    const Ran loaded = run_with(arguments);
    ASSERT_EQ(loaded.code, 0) << strategy << loaded.err;
    const Ran verified = run_with({"verify", sample(), ledger()});
    EXPECT_EQ(verified.code, 0) << strategy << verified.err;
    EXPECT_THAT(verified.out, HasSubstr("verified: 22 tensors"));
  }
}

TEST_F(LoadCommand, R65_AnAdapterIsLoadedUnderEveryLayoutAndVerified) {
  const auto file_of = [](const std::string& data) {
    return test::safetensors_bytes(R"({"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", data);
  };
  dir_.write("base/model.safetensors", file_of("abcdefgh"));
  dir_.write("lora/model.safetensors", file_of("ABCDEFGH"));
  dir_.write("names.json", R"({"w": "lora"})");
  dir_.write("skeleton.json", R"({"schema": "lading.skeleton/1", "tensors": [
      {"name": "w", "kind": "parameter", "shape": [8], "dtype": "U8"},
      {"name": "lora", "kind": "parameter", "shape": [8], "dtype": "U8", "adapter": true}]})");
  const std::string adapter = dir_.path("lora") + "=" + dir_.path("names.json");
  for (const std::string strategy : {"ddp", "fsdp2", "zero3"}) {
    const Ran loaded = run_with({"load", dir_.path("base"), "--skeleton", dir_.path("skeleton.json"), "--adapter",
                                 adapter, "--mesh", "dp=3", "--strategy", strategy, "--ledger", ledger(), "--poison"});
    ASSERT_EQ(loaded.code, 0) << strategy << loaded.err;
    const Ran verified = run_with({"verify", dir_.path("base"), ledger(), "--adapter", dir_.path("lora")});
    EXPECT_EQ(verified.code, 0) << strategy << verified.err;
    EXPECT_THAT(verified.out, HasSubstr("verified: 2 tensors"));
  }
  EXPECT_EQ(run_with({"verify", dir_.path("base"), ledger()}).code, 2) << "the ledger has an adapter";
  EXPECT_EQ(run_with({"verify", dir_.path("base"), ledger(), "--adapter", dir_.path("base")}).code, 6);
  dir_.write("names.json", R"({"w": 1})");
  const Ran refused =
      run_with({"plan", dir_.path("base"), "--skeleton", dir_.path("skeleton.json"), "--adapter", adapter});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("names.json"));
}

TEST_F(LoadCommand, APathOfAnAdapterMayHaveAnEqualsSign) {
  const std::string bytes = test::safetensors_bytes(R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "ab");
  dir_.write("base/model.safetensors", bytes);
  dir_.write("lr=1e-4/adapter.safetensors", bytes);
  dir_.write("names.json", R"({"w": "w"})");
  dir_.write("skeleton.json", R"({"schema": "lading.skeleton/1", "tensors": [
      {"name": "w", "kind": "parameter", "shape": [2], "dtype": "U8"}]})");
  const std::string path = dir_.path("lr=1e-4/adapter.safetensors");
  for (const std::string& adapter : {path, path + "=" + dir_.path("names.json")}) {
    const Ran loaded =
        run_with({"load", dir_.path("base"), "--skeleton", dir_.path("skeleton.json"), "--adapter", adapter});
    EXPECT_EQ(loaded.code, 0) << adapter << loaded.err;
  }
}

TEST_F(LoadCommand, OneRankIsVerifiedInPart) {
  ASSERT_EQ(
      run_with({"load", sample(), "--mesh", "dp=4", "--strategy", "fsdp2", "--rank", "2", "--ledger", ledger()}).code,
      0);
  const Ran verified = run_with({"verify", sample(), ledger()});
  EXPECT_EQ(verified.code, 0) << verified.err;
  EXPECT_THAT(verified.out, HasSubstr("partly"));
}

TEST_F(LoadCommand, ADirectoryOfLedgersIsVerifiedAsOneLoad) {
  std::filesystem::create_directory(dir_.path("ledgers"));
  for (const char* rank : {"0", "1"}) {
    const std::string at = dir_.path("ledgers/" + std::string(rank) + ".json");
    ASSERT_EQ(
        run_with({"load", sample(), "--mesh", "dp=2", "--strategy", "fsdp2", "--rank", rank, "--ledger", at}).code, 0);
  }
  const Ran verified = run_with({"verify", sample(), dir_.path("ledgers")});
  EXPECT_EQ(verified.code, 0) << verified.err;
  EXPECT_THAT(verified.out, HasSubstr("verified: 22 tensors"));
  EXPECT_THAT(verified.out, Not(HasSubstr("partly")));
  // Every file that is not a ledger is told, and so is an empty directory.
  dir_.write("ledgers/2.json", "{}");
  dir_.write("ledgers/3.json", "[]");
  const Ran refused = run_with({"verify", sample(), dir_.path("ledgers"), "--json"});
  EXPECT_EQ(refused.code, 4);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("ledgers/2.json"), HasSubstr("ledgers/3.json")));
  std::filesystem::create_directory(dir_.path("none"));
  const Ran none = run_with({"verify", sample(), dir_.path("none")});
  EXPECT_EQ(none.code, 4);
  EXPECT_THAT(none.err, HasSubstr("the directory has no ledger"));
}

TEST_F(LoadCommand, LedgersOfTwoLoadsAreNotOne) {
  std::filesystem::create_directory(dir_.path("ledgers"));
  for (const char* mesh : {"dp=2", "dp=3"}) {
    const std::string at = dir_.path("ledgers/" + std::string(mesh) + ".json");
    ASSERT_EQ(run_with({"load", sample(), "--mesh", mesh, "--strategy", "fsdp2", "--rank", "1", "--ledger", at}).code,
              0);
  }
  const Ran refused = run_with({"verify", sample(), dir_.path("ledgers")});
  EXPECT_EQ(refused.code, 4);
  EXPECT_THAT(refused.err, HasSubstr("different loads"));
}

TEST_F(LoadCommand, PlansAreNoLedgers) {
  dir_.write("plan.json", run_with({"plan", sample(), "--json"}).out);
  const std::string plan = dir_.path("plan.json");
  const Ran diff = run_with({"diff", plan, plan});
  EXPECT_EQ(diff.code, 4);
  EXPECT_EQ(std::count(diff.err.begin(), diff.err.end(), '\n'), 2 + 1)
      << "one line for each, and one about help: " << diff.err;
  EXPECT_THAT(diff.err, HasSubstr("is a plan, not a ledger"));
  EXPECT_THAT(diff.err, HasSubstr("Use lading plan CKPT … --diff PLAN"));
  EXPECT_THAT(run_with({"verify", sample(), plan}).err, HasSubstr("is a plan, not a ledger"));
}

TEST_F(LoadCommand, AFieldIsNamedOnceThoughItsReaderAsksTwice) {
  dir_.write("ledger.json", R"({"schema": "lading.ledger/1", "wrong": 1})");
  const std::string told = run_with({"verify", sample(), ledger()}).err;
  const std::size_t list = told.find("expected only");
  ASSERT_NE(list, std::string::npos) << told;
  const std::string names = told.substr(list, told.find('\n', list) - list);
  EXPECT_EQ(names.find("plan_digest"), names.rfind("plan_digest")) << names;
}

TEST_F(LoadCommand, R34_OneRankOfAMeshOnTheDeviceOfItsProcess) {
  const std::vector<std::string> load = {"load", sample(), "--mesh", "dp=4", "--strategy", "fsdp2", "--rank", "2"};
  auto with = [&](const std::string& device) {
    std::vector<std::string> arguments = load;
    arguments.insert(arguments.end(), {"--device", device});
    return run_with(arguments);
  };
  EXPECT_EQ(with("cpu").code, 0);
  ::setenv("LADING_LIBCUDA", "/nowhere/libcuda.so.1", 1);
  const Ran ran = with("cuda:0");
  ::unsetenv("LADING_LIBCUDA");
  EXPECT_EQ(ran.code, 5) << "it is planned, and there is no GPU here: " << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("the CUDA driver could not be opened"));
  const Ran all = run_with({"load", sample(), "--mesh", "dp=4", "--strategy", "fsdp2", "--device", "cuda:0"});
  EXPECT_EQ(all.code, 2);
  EXPECT_THAT(all.err, HasSubstr("--rank"));
}

TEST_F(LoadCommand, AFlippedBitInTheFilesIsADifference) {
  ASSERT_EQ(run_with({"load", sample(), "--ledger", ledger()}).code, 0);
  const std::string shard = "sample/model-00001-of-00002.safetensors";
  std::string bytes = dir_.read(shard);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  dir_.write(shard, bytes);
  const Ran verified = run_with({"verify", sample(), ledger()});
  EXPECT_EQ(verified.code, 6);
  EXPECT_THAT(verified.err, HasSubstr("differs:"));
  const Ran json = run_with({"verify", sample(), ledger(), "--json"});
  EXPECT_EQ(json.code, 6);
  EXPECT_THAT(json.out, HasSubstr("\"ok\": false"));
  EXPECT_THAT(json.out, HasSubstr("values_differ"));
}

TEST_F(LoadCommand, JsonIsOneDocument) {
  const Ran ran = run_with({"load", sample(), "--json"});
  EXPECT_EQ(ran.code, 0);
  const auto document = JsonDocument::parse(JsonBuffer::copy_of(ran.out));
  ASSERT_TRUE(document.has_value()) << ran.out;
  EXPECT_THAT(ran.out, HasSubstr("\"schema\": \"lading.load/1\""));
}

TEST_F(LoadCommand, WhatCannotBePlannedIsRefusedAsPlanDoes) {
  EXPECT_EQ(run_with({"load", dir_.path("nothing")}).code, 3);
  EXPECT_EQ(run_with({"load", sample(), "--mesh", "dp=2"}).code, 2);
  dir_.write("policy.json", R"({"schema": "lading.policy/1", "budget_bytes": 1})");
  EXPECT_EQ(run_with({"load", sample(), "--policy", dir_.path("policy.json")}).code, 4);
}

TEST_F(LoadCommand, R34_AGpuWhereThereIsNoDriverIsRefused) {
  ::setenv("LADING_LIBCUDA", "/nowhere/libcuda.so.1", 1);
  const Ran ran = run_with({"load", sample(), "--mesh", "dp=1", "--strategy", "single", "--device", "cuda:0"});
  ::unsetenv("LADING_LIBCUDA");
  EXPECT_EQ(ran.code, 5) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("the CUDA driver could not be opened"));
  EXPECT_THAT(ran.err, HasSubstr("R34"));
  EXPECT_THAT(ran.out, Not(HasSubstr("loaded:")));
}

TEST_F(LoadCommand, Fault56_AnInterruptedLoadSaysThatItIsIncomplete) {
  const std::atomic<bool> interrupted = true;
  Output output;
  output.catch_signals = [&] { return &interrupted; };
  EXPECT_EQ(run({"load", sample()}, output), Exit::kLoad);
  EXPECT_THAT(output.err, HasSubstr("cancelled"));
  EXPECT_THAT(output.err, HasSubstr("incomplete"));
}

TEST_F(LoadCommand, ALedgerThatCannotBeWrittenIsAFailure) {
  const Ran ran = run_with({"load", sample(), "--ledger", dir_.path("no/such/folder/ledger.json")});
  EXPECT_EQ(ran.code, 5);
  EXPECT_THAT(ran.err, HasSubstr("write_failed"));
}

TEST_F(LoadCommand, OnlyALedgerIsOverwritten) {
  const std::string shard = "sample/model-00001-of-00002.safetensors";
  const std::string before = dir_.read(shard);
  const Ran ran = run_with({"load", sample(), "--ledger", dir_.path(shard)});
  EXPECT_EQ(ran.code, 5);
  EXPECT_THAT(ran.err, HasSubstr("is not a ledger"));
  EXPECT_EQ(dir_.read(shard), before);
  EXPECT_EQ(run_with({"load", sample(), "--ledger", ledger()}).code, 0);
  EXPECT_EQ(run_with({"load", sample(), "--ledger", ledger()}).code, 0) << "an older one";
}

TEST_F(LoadCommand, R38_AKeyThatTheLedgerDoesNotKnowIsADifference) {
  const std::string empty = R"({"schema": "lading.ledger/1", "lading": "0.1.0", "complete": true, "checkpoint": "x",
      "plan_digest": "0", "mesh": [], "seed": 0, "ranks": [], "files": [], "tensors": [], "records": [],
      "ignored_keys": [], "unexpected_keys": []})";
  dir_.write("empty.json", empty);
  const Ran ran = run_with({"verify", sample(), dir_.path("empty.json")});
  EXPECT_NE(ran.code, 0) << ran.out;
  EXPECT_THAT(ran.out, Not(HasSubstr("verified:")));
}

TEST_F(LoadCommand, ALedgerThatIsNoneIsRefused) {
  dir_.write("ledger.json", "{}");
  EXPECT_EQ(run_with({"verify", sample(), ledger()}).code, 4);
  EXPECT_EQ(run_with({"verify", sample(), dir_.path("nothing.json")}).code, 4);
}

TEST_F(LoadCommand, TheDemoLoadsEightRanksAndVerifiesThem) {
  const Ran ran = run_with({"demo", "--dir", dir_.path("demo")});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("22 tensors in 2 files"));
  EXPECT_THAT(ran.out, HasSubstr("loaded: 22 tensors on 8 ranks of dp=4,tp=2"));
  EXPECT_THAT(ran.out, HasSubstr("verified: 22 tensors"));
}

TEST(Progress, SaysHowFastAndHowLong) {
  EXPECT_EQ(progress_text({5'000'000'000, 20'000'000'000, 0}, 2.5), "5.00 GB of 20.00 GB  2.00 GB/s  0:08 left");
  EXPECT_EQ(progress_text({0, 0, 0}, 0), "0 B of 0 B  0.00 GB/s");
}

TEST(Progress, ABarOnATerminalAndLinesElsewhere) {
  std::string shown;
  Output output;
  output.live = [&](std::string_view text) { shown += text; };
  const auto start = ProgressLine::Clock::now();
  ProgressLine lines(output);
  lines.show({1, 2, 0}, start + std::chrono::seconds(1));
  EXPECT_EQ(shown, "");
  lines.show({1, 2, 0}, start + std::chrono::seconds(7));
  EXPECT_THAT(shown, HasSubstr("lading: 1 B of 2 B"));
  shown.clear();
  output.live_is_terminal = true;
  ProgressLine bar(output);
  bar.show({1, 2, 0}, start + std::chrono::seconds(1));
  EXPECT_THAT(shown, HasSubstr(" 50%"));
  bar.clear();
  EXPECT_THAT(shown, ::testing::EndsWith("\r\x1b[K"));
}

}  // namespace
}  // namespace lading::cli
