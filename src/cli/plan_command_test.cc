#include "cli/plan_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/json_reader.h"
#include "base/text.h"
#include "cli/run_for_tests.h"
#include "lading/sample.h"
#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace lading::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class PlanCommand : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(write_sample_checkpoint(sample()).has_value()); }

  [[nodiscard]] std::string sample() const { return dir_.path("sample"); }

  // `lading plan SAMPLE …`
  [[nodiscard]] Ran plan(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"plan", sample()});
    return run_with(arguments);
  }

  test::TempDir dir_;
};

JsonDocument parsed(const std::string& text) {
  auto document = JsonDocument::parse(JsonBuffer::copy_of(text));
  EXPECT_TRUE(document.has_value()) << text;
  return *std::move(document);
}

TEST_F(PlanCommand, TheSummaryComesFirst) {
  const Ran ran = plan({});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.err, "");
  for (const char* part : {"accepted: 22 tensors on 1 rank", "254.47 kB", "digest", "file", "Rank 0", "peak cpu"}) {
    EXPECT_THAT(ran.out, HasSubstr(part));
  }
  EXPECT_THAT(ran.out, Not(HasSubstr("self_attn"))) << "only with --tensors";
  EXPECT_THAT(plan({"--tensors"}).out, HasSubstr("model.layers.1.self_attn.q_proj.weight"));
}

TEST_F(PlanCommand, R12_InitializeNeedsNoCheckpoint) {
  dir_.write("s.json", R"({"schema": "lading.skeleton/1", "tensors": [
    {"name": "a", "kind": "parameter", "shape": [6, 2], "dtype": "F32", "init": {"kind": "normal", "mean": 0, "std": 1}},
    {"name": "b", "kind": "buffer", "shape": [2], "dtype": "F32", "init": {"kind": "fill", "value": 3}}]})");
  const std::vector<std::string> words = {"--initialize", "--skeleton", dir_.path("s.json")};
  const auto with = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), words.begin(), words.end());
    return run_with(arguments);
  };
  const Ran planned = with({"plan"});
  EXPECT_EQ(planned.code, 0) << planned.err;
  EXPECT_THAT(planned.out, HasSubstr("accepted: 2 tensors on 1 rank"));
  EXPECT_EQ(with({"load", "--ledger", dir_.path("one.json")}).code, 0);
  EXPECT_EQ(with({"load", "--mesh", "dp=3", "--strategy", "fsdp2", "--ledger", dir_.path("three.json")}).code, 0);
  const Ran differs = run_with({"diff", dir_.path("one.json"), dir_.path("three.json")});
  EXPECT_EQ(differs.code, 0) << differs.out << "the same bits on three ranks (R16)";
  EXPECT_EQ(with({"plan", sample()}).code, 2) << "a checkpoint, and none";
}

TEST_F(PlanCommand, AllRanksAreToldByTheirExtremes) {
  const Ran ran = plan({"--mesh", "dp=4,tp=2", "--strategy", "fsdp2+tp", "--all-ranks"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.out, HasSubstr("22 tensors on 8 ranks (dp=4,tp=2)"));
  EXPECT_THAT(ran.out, HasSubstr("mean"));
  EXPECT_THAT(ran.err, HasSubstr("note: ")) << "scalars are replicated";
}

TEST_F(PlanCommand, OneRankOfMany) {
  const Ran ran = plan({"--mesh", "dp=4", "--strategy", "zero3", "--rank", "3", "--tensors"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.out, HasSubstr("Rank 3"));
  EXPECT_THAT(ran.out, HasSubstr("Tensors, on rank 3"));
}

TEST_F(PlanCommand, ARefusalIsFourAndListsEveryProblem) {
  const std::string skeleton = dir_.write("s.json", R"({"schema": "lading.skeleton/1", "tensors": [
      {"name": "model.embed_tokens.weight", "kind": "parameter", "shape": [512, 64], "dtype": "BF16"},
      {"name": "model.norm.weight", "kind": "parameter", "shape": [65], "dtype": "BF16"}]})");
  const Ran ran = plan({"--skeleton", skeleton});
  EXPECT_EQ(ran.code, 4);
  EXPECT_EQ(ran.out, "");
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 7 + 1) << "and one about help: " << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("R41"));
  const Ran json = plan({"--skeleton", skeleton, "--json"});
  EXPECT_EQ(json.code, 4);
  const JsonDocument document = parsed(json.out);
  EXPECT_EQ(document.root().find("schema")->text(), "lading.plan/1");
  EXPECT_EQ(document.root().find("ok")->kind(), JsonKind::kFalse);
  EXPECT_EQ(document.root().find("problems")->size(), 21U);
}

TEST_F(PlanCommand, ExitCodesSayWhoseFaultItIs) {
  Output output;
  EXPECT_EQ(run({"plan", dir_.path("nothing")}, output), Exit::kCheckpoint);
  EXPECT_EQ(run({"plan"}, output), Exit::kUsage);
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--rank", "1"},
                                             {"--rank", "-1"},
                                             {"--rank", "x"},
                                             {"--rank", "0", "--all-ranks"},
                                             {"--mesh", "dp=2"},
                                             {"--strategy", "magic"},
                                             {"--layout", "l.json", "--mesh", "dp=2"},
                                             {"--tp-plan", "no-style"},
                                             {"--explain", "model.norm.wieght"},
                                             {"--explain", "model.norm.weight", "--diff", "p.json"}}) {
    const Ran ran = plan(arguments);
    EXPECT_EQ(ran.code, 2) << ::testing::PrintToString(arguments);
    EXPECT_EQ(ran.out, "");
    EXPECT_NE(ran.err, "");
  }
  for (const char* option : {"--skeleton", "--layout", "--mapping", "--policy", "--diff"}) {
    EXPECT_EQ(plan({option, dir_.write("bad.json", "{\"schema\": 1}")}).code, 4) << option;
    EXPECT_EQ(plan({option, dir_.write("bad.json", "{")}).code, 4) << option;
  }
}

TEST_F(PlanCommand, DocumentsReachThePlan) {
  const std::string layout = dir_.write("l.json", R"({"schema": "lading.layout/1", "mesh": [{"name": "x", "size": 2}],
      "devices": {"type": "cuda", "per_node": 2}, "rules": [{"pattern": "*embed*", "cuts": [{"shard": 1, "axes": ["x"]}]}]})");
  const Ran ran = plan({"--layout", layout, "--rank", "1", "--explain", "model.embed_tokens.weight"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("dim 1 in 2 chunks over x"));
  EXPECT_THAT(ran.out, HasSubstr("all rows, indices of dim 1 32 to 64 of 64"));
  EXPECT_THAT(ran.out, HasSubstr("cuda:1"));
  const std::string mapping = dir_.write("m.json", R"({"schema": "lading.mapping/1", "rules": [
      {"id": "mine", "kind": "ignore", "from": ".*mixer.*"}]})");
  const std::string skeleton = dir_.write("s.json", R"({"schema": "lading.skeleton/1", "tensors": [
      {"name": "model.norm.weight", "kind": "parameter", "shape": [64], "dtype": "BF16"}]})");
  const std::string policy = dir_.write("p.json", R"({"schema": "lading.policy/1", "allow_unexpected": ["*"]})");
  const Ran lax = plan({"--mapping", mapping, "--skeleton", skeleton, "--policy", policy});
  EXPECT_EQ(lax.code, 0) << lax.err;
  EXPECT_THAT(lax.out, HasSubstr("Ignored: 2 keys"));
  EXPECT_THAT(lax.out, HasSubstr("not read: 19 keys"));
  EXPECT_THAT(lax.out, HasSubstr("9 more"));
}

TEST_F(PlanCommand, TensorParallelRulesInTheOrderGiven) {
  const Ran ran = plan({"--mesh", "tp=2", "--strategy", "tp", "--tp-plan", "*.o_proj.*=rowwise", "--tp-plan",
                        "*_proj.*=colwise", "--explain", "model.layers.0.self_attn.o_proj.weight"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("dim 1 in 2 chunks over tp"));
}

TEST_F(PlanCommand, R34_DevicesAreStated) {
  const Ran ran =
      plan({"--mesh", "dp=4", "--strategy", "ddp", "--device", "cuda", "--devices-per-node", "2", "--rank", "3"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("rank r uses cuda:(r % 2)"));
  EXPECT_THAT(ran.out, HasSubstr("peak cuda:1"));
  EXPECT_EQ(plan({"--device", "cuda:1"}).code, 0);
  EXPECT_EQ(plan({"--device", "cuda:1", "--mesh", "dp=2", "--strategy", "ddp", "--all-ranks"}).code, 2);
  const Ran one = plan({"--device", "cuda:1", "--mesh", "dp=2", "--strategy", "ddp", "--rank", "1"});
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(one.err, HasSubstr("every rank uses cuda:1, in its own process"));
  EXPECT_EQ(plan({"--devices-per-node", "2"}).code, 2);
  EXPECT_EQ(plan({"--device", "cuda", "--devices-per-node", "0"}).code, 2);
}

// Half of a tensor is wanted: the other half is read by nobody, which only all ranks together can tell.
TEST_F(PlanCommand, R11_BytesThatNobodyReadsAreToldOfAllRanks) {
  const std::string skeleton = dir_.write("s.json", R"({"schema": "lading.skeleton/1", "tensors": [
      {"name": "half", "kind": "parameter", "shape": [256, 64], "dtype": "BF16"}]})");
  const std::string mapping = dir_.write("m.json", R"({"schema": "lading.mapping/1", "rules": [
      {"id": "half", "kind": "build", "to": "half", "expression":
       {"slice": {"dim": 0, "begin": 0, "end": 256, "of": "model.embed_tokens.weight"}}}]})");
  const std::string policy = dir_.write("p.json", R"({"schema": "lading.policy/1", "unexpected": "report"})");
  const std::vector<std::string> inputs = {"--skeleton", skeleton, "--mapping", mapping,      "--policy",
                                           policy,       "--mesh", "dp=2",      "--strategy", "ddp"};
  const Ran one = plan(inputs);
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(one.out, Not(HasSubstr("no requested rank reads")));
  std::vector<std::string> all = inputs;
  all.emplace_back("--all-ranks");
  EXPECT_THAT(plan(all).out, HasSubstr("no requested rank reads 32,768 bytes of the checkpoint"));
}

TEST_F(PlanCommand, JsonIsTheSameEveryTimeAndHasNoColour) {
  Output first;
  Output second;
  first.out_colour = Colour::kOn;
  EXPECT_EQ(run({"plan", sample(), "--json"}, first), Exit::kOk);
  EXPECT_EQ(run({"plan", "--json", sample()}, second), Exit::kOk);
  EXPECT_EQ(first.out, second.out);
  EXPECT_EQ(parsed(first.out).root().find("tensors")->size(), 22U);
}

TEST_F(PlanCommand, ExplainAsJson) {
  const Ran ran = plan({"--explain", "model.norm.weight", "--json"});
  EXPECT_EQ(ran.code, 0);
  const JsonDocument document = parsed(ran.out);
  EXPECT_EQ(document.root().find("schema")->text(), "lading.explanation/1");
  EXPECT_EQ(document.root().find("tensor")->text(), "model.norm.weight");
  EXPECT_GT(document.root().find("facts")->size(), 5U);
  EXPECT_EQ(parsed(plan({"--explain", "unknown", "--json"}).out).root().find("ok")->kind(), JsonKind::kFalse);
}

TEST_F(PlanCommand, DiffIsSixWhenPlansDiffer) {
  const std::string before = dir_.write("before.json", plan({"--json"}).out);
  const Ran same = plan({"--diff", before});
  EXPECT_EQ(same.code, 0);
  EXPECT_THAT(same.out, HasSubstr("equal"));
  const std::string policy = dir_.write("p.json", R"({"schema": "lading.policy/1", "dtype": "F32"})");
  const Ran wider = plan({"--policy", policy, "--diff", before});
  EXPECT_EQ(wider.code, 6);
  EXPECT_THAT(wider.out, HasSubstr(R"(~ tensor model.norm.weight: storage_dtype: "BF16" -> "F32")"));
  EXPECT_THAT(wider.out, HasSubstr("~ rank 0: owned_bytes: 254472 -> "));
  const Ran json = plan({"--policy", policy, "--diff", before, "--json"});
  EXPECT_EQ(json.code, 6);
  const JsonDocument document = parsed(json.out);
  EXPECT_EQ(document.root().find("schema")->text(), "lading.plan_diff/1");
  EXPECT_EQ(document.root().find("equal")->kind(), JsonKind::kFalse);
}

TEST_F(PlanCommand, Fault16_HostileNamesAreEscaped) {
  dir_.write("evil/m.safetensors", test::one_tensor_file(R"(a\u001b[2J\n\u202e)", "data"));
  const std::string name = "a\x1b[2J\n\u202e";
  const std::string before = dir_.write("before.json", plan({"--json"}).out);
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"--tensors"}, {"--explain", name}, {"--explain", name + "x"}, {"--diff", before}}) {
    std::vector<std::string> arguments = {"plan", dir_.path("evil")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    Output output;
    run(arguments, output);
    for (const std::string& text : {output.out, output.err}) {
      EXPECT_THAT(text, Not(HasSubstr("\x1b")));
      EXPECT_THAT(text, Not(HasSubstr("\u202e")));
      EXPECT_EQ(find_invalid_utf8(text), std::nullopt);
    }
  }
}

TEST_F(PlanCommand, ItSaysWhetherAQuantizedCheckpointIsDequantized) {
  const std::string checkpoint =
      dir_.write("q.safetensors",
                 test::safetensors_bytes(R"({"x.weight":{"dtype":"F8_E4M3","shape":[4,4],"data_offsets":[0,16]},)"
                                         R"("x.weight_scale_inv":{"dtype":"F32","shape":[],"data_offsets":[16,20]}})",
                                         std::string(18, '\0') + "\x80\x3f"));
  const std::string skeleton = dir_.write("s.json", R"({"schema": "lading.skeleton/1", "tensors": [
    {"name": "x.weight", "kind": "parameter", "shape": [4, 4], "dtype": "BF16"}]})");
  for (const char* command : {"plan", "load"}) {
    const Ran unchanged = run_with({command, checkpoint});
    EXPECT_EQ(unchanged.code, 0);
    EXPECT_THAT(unchanged.err, HasSubstr("the checkpoint is quantized, and is loaded unchanged"));
    EXPECT_THAT(unchanged.err, HasSubstr("--skeleton FILE"));
    EXPECT_THAT(unchanged.out, Not(HasSubstr("dequantized")));
    const Ran dequantized = run_with({command, checkpoint, "--skeleton", skeleton});
    EXPECT_EQ(dequantized.err, "");
    EXPECT_THAT(dequantized.out, HasSubstr("dequantized"));
    EXPECT_THAT(dequantized.out, HasSubstr("1 quantized tensor"));
  }
}

}  // namespace
}  // namespace lading::cli
