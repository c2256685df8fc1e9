// The C ABI: requests that are refused, memory and callbacks that do not fit. Loads from real files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "api/c/c_api_for_tests.h"

namespace lading {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(CApiTest, PlansThenLoads) {
  const Answer plan(lading_plan(request().c_str()));
  ASSERT_EQ(plan.exit_code(), 0) << plan.text();
  const auto memories = memories_for(plan);
  const Answer report(lading_load(plan.get(), memories.data(), memories.size(), nullptr));
  ASSERT_EQ(report.exit_code(), 0) << report.text();
  EXPECT_THAT(floats_["a"], ElementsAre(1, 2));
  EXPECT_THAT(floats_["b"], ElementsAre(3, 4, 5));
  EXPECT_THAT(plan.text(), HasSubstr(R"("name": "b", "slot": "", "unit": "", "device": "cpu", "provenance": "file", )"
                                     R"("dtype": "F32", "shape": [3], "local_shape": [3], "size_bytes": 12, )"
                                     R"("aliases": [], "replicas": 0})"));
  EXPECT_THAT(plan.text(), ContainsRegex(R"("replica_sets": \[\s+\[0\]\s+\])"));
  EXPECT_THAT(report.text(), AllOf(HasSubstr(R"("schema": "lading.load/1")"), HasSubstr(R"("ok": true)"),
                                   ContainsRegex(R"("digests": \[\s+"[0-9a-f]{32}",\s+"[0-9a-f]{32}"\s+\])")));
}

TEST_F(CApiTest, APlanIsLoadedAgain) {
  const Answer plan(lading_plan(request().c_str()));
  for (int i = 0; i < 2; ++i) {
    const auto memories = memories_for(plan);
    const Answer report(lading_load(plan.get(), memories.data(), memories.size(), nullptr));
    ASSERT_EQ(report.exit_code(), 0) << report.text();
    EXPECT_THAT(floats_["a"], ElementsAre(1, 2));
  }
}

TEST_F(CApiTest, BadJsonIsRefusedWithItsPlace) {
  for (const char* json : {"", "{", "[1, 2", R"({"schema": "lading.request/1",})"}) {
    const Answer answer(lading_plan(json));
    EXPECT_EQ(answer.exit_code(), 2);
    EXPECT_THAT(answer.text(), AllOf(HasSubstr(R"("code": "json_syntax")"), HasSubstr("request (text)"),
                                     HasSubstr(R"("stage": "request")"), HasSubstr(R"("begun": false)")));
  }
}

TEST_F(CApiTest, EveryFaultOfARequestIsTold) {
  const Answer answer(lading_plan(R"({"schema": "lading.request/7", "treads": 2, "threads": -1, "ranks": [0, "x"],
    "read_method": "fast", "skeleton": 5, "tp_plan": [{"pattern": "*", "stile": "rowwise"}], "digests": "on",
    "devices_per_node": 1.5, "trailing_bytes": true, "root": 1})"));
  EXPECT_EQ(answer.exit_code(), 2);
  for (const char* place :
       {"$.schema", "$.checkpoint", "$.treads: unknown field", "$.threads", "$.ranks", "$.read_method", "$.skeleton",
        "$.tp_plan[0].style", "$.tp_plan[0].stile", "$.digests", "$.devices_per_node", "$.trailing_bytes", "$.root"}) {
    EXPECT_THAT(answer.text(), HasSubstr(place));
  }
}

TEST_F(CApiTest, FieldsOfAnotherFunctionAreUnknown) {
  EXPECT_THAT(Answer(lading_inspect(request(R"(, "threads": 1)").c_str())).text(),
              HasSubstr("$.threads: unknown field"));
  EXPECT_THAT(Answer(lading_plan(request(R"(, "ledger": {})").c_str())).text(), HasSubstr("$.ledger: unknown field"));
  EXPECT_THAT(Answer(lading_verify(request().c_str())).text(), HasSubstr("$.ledger: the field is missing"));
}

TEST_F(CApiTest, NoRequestIsNoCrash) {
  EXPECT_EQ(Answer(lading_inspect(nullptr)).exit_code(), 2);
  EXPECT_EQ(Answer(lading_plan(nullptr)).exit_code(), 2);
  EXPECT_EQ(Answer(lading_verify(nullptr)).exit_code(), 2);
  EXPECT_EQ(Answer(lading_load(nullptr, nullptr, 0, nullptr)).exit_code(), 2);
  EXPECT_EQ(Answer(lading_ledger(nullptr)).exit_code(), 2);
  EXPECT_EQ(Answer(lading_plan_document(nullptr)).exit_code(), 2);
  EXPECT_EQ(lading_exit_code(nullptr), 1);
  EXPECT_EQ(lading_text(nullptr, nullptr), nullptr);
  std::uint64_t count = 7;
  EXPECT_EQ(lading_destinations(nullptr, &count), nullptr);
  EXPECT_EQ(count, 0U);
}

TEST_F(CApiTest, TheStageSaysWhoRefuses) {
  const Answer no_checkpoint(lading_plan(R"({"schema": "lading.request/1", "checkpoint": "/nowhere/at/all"})"));
  EXPECT_EQ(no_checkpoint.exit_code(), 3);
  EXPECT_THAT(no_checkpoint.text(), HasSubstr(R"("stage": "checkpoint")"));
  const Answer no_policy(lading_plan(request(R"(, "policy": {"schema": "lading.policy/1", "cats": "exact"})").c_str()));
  EXPECT_EQ(no_policy.exit_code(), 4);
  EXPECT_THAT(no_policy.text(),
              AllOf(HasSubstr(R"("stage": "documents")"), HasSubstr("$.cats"), HasSubstr("policy (text)")));
}

TEST_F(CApiTest, R12_ALoadMayStartFromNothing) {
  const std::string skeleton = R"("skeleton": {"schema": "lading.skeleton/1", "tensors": [
    {"name": "a", "kind": "parameter", "shape": [2], "dtype": "F32", "init": {"kind": "fill", "value": 3}}]})";
  const std::string begin = R"({"schema": "lading.request/1", "start": "nothing", )";
  const Answer plan(lading_plan((begin + skeleton + "}").c_str()));
  EXPECT_EQ(plan.exit_code(), 0) << plan.text();
  EXPECT_THAT(plan.text(), HasSubstr(R"("path": "")"));
  const Answer both(lading_plan((begin + R"("checkpoint": "here", )" + skeleton + "}").c_str()));
  EXPECT_THAT(both.text(), HasSubstr("a checkpoint is given, but the load is to start without one"));
  const Answer neither(lading_plan((begin.substr(0, begin.size() - 2) + "}").c_str()));
  EXPECT_THAT(neither.text(), HasSubstr("a load without a checkpoint needs a skeleton"));
}

TEST_F(CApiTest, InlineDocumentsAreCutOutWhole) {
  // Braces and quotes in strings, and fields behind the document.
  const std::string skeleton = R"({"schema": "lading.skeleton/1", "tensors": [
    {"name": "}\"]{\\", "kind": "parameter", "shape": [2], "dtype": "F32"}]})";
  const Answer answer(lading_plan(request(R"(, "skeleton": )" + skeleton + R"(, "ranks": [0])").c_str()));
  EXPECT_EQ(answer.exit_code(), 4);
  EXPECT_THAT(answer.text(), AllOf(HasSubstr(R"("stage": "planning")"), HasSubstr(R"("tensor": "}\"]{\\")")));
}

TEST_F(CApiTest, DocumentsMayBeFiles) {
  const std::string path = dir_.write("policy.json", R"({"schema": "lading.policy/1", "dtype": "F64"})");
  const Answer plan(lading_plan(request(R"(, "policy": ")" + path + "\"").c_str()));
  EXPECT_EQ(plan.exit_code(), 0) << plan.text();
  EXPECT_THAT(plan.text(), HasSubstr(R"("dtype": "F64", "checkpoint_dtype": "F32")"));
}

// On any rank, aliases too; with the rule that says why.
TEST_F(CApiTest, APlanSaysWhatNoFileGivesAValue) {
  const Answer plan(lading_plan(request(R"(, "skeleton": {"schema": "lading.skeleton/1", "tensors": [
    {"name": "a", "kind": "parameter", "shape": [2], "dtype": "F32"},
    {"name": "b", "kind": "parameter", "shape": [7], "dtype": "F32", "presence": "real", "device": "cpu"},
    {"name": "kept", "kind": "buffer", "shape": [2], "dtype": "F32", "presence": "real", "device": "cpu"},
    {"name": "new", "kind": "parameter", "shape": [2], "dtype": "F32", "init": {"kind": "normal", "mean": 0, "std": 1}},
    {"name": "tied", "kind": "parameter", "shape": [2], "dtype": "F32"}], "ties": [["new", "tied"]]},
    "policy": {"schema": "lading.policy/1", "allow_missing": ["kept", "new", "tied"], "allow_mismatch": ["b"]},
    "mesh": "dp=2", "strategy": "fsdp2")")
                                    .c_str()));
  ASSERT_EQ(plan.exit_code(), 0) << plan.text();
  EXPECT_THAT(plan.text(),
              ContainsRegex(R"("not_from_file": \[\s+)"
                            R"(\{"name": "b", "kind": "parameter", "provenance": "kept", "rule": "R21"\},\s+)"
                            R"(\{"name": "kept", "kind": "buffer", "provenance": "kept", "rule": "R7"\},\s+)"
                            R"(\{"name": "new", "kind": "parameter", "provenance": "random", "rule": "R12"\},\s+)"
                            R"(\{"name": "tied", "kind": "parameter", "provenance": "random", "rule": "R12"\}\s+\])"));
  EXPECT_THAT(plan.text(), ContainsRegex(R"("missing_keys": \[\s+"kept",\s+"new",\s+"tied"\s+\])"));
  EXPECT_THAT(plan.text(), ContainsRegex(R"("mismatched_keys": \[\s+"b"\s+\])"));
  EXPECT_THAT(plan.text(), ContainsRegex(R"("initialized": \[\s+"new",\s+"tied"\s+\])"));
}

TEST_F(CApiTest, OnePatternLanguage) {
  const auto matches = [](std::string_view pattern, std::string_view name) {
    return lading_pattern_matches(pattern.data(), pattern.size(), name.data(), name.size()) != 0;
  };
  EXPECT_TRUE(matches("layers.*", "layers.0"));
  EXPECT_TRUE(matches("layers.*", "layers.0.mlp")) << "a dot is a character like others";
  EXPECT_TRUE(matches("*.mlp", "a.b.mlp"));
  EXPECT_FALSE(matches("layers.*", "layers"));
  EXPECT_FALSE(matches("a", "ab"));
  EXPECT_TRUE(matches("", ""));
}

TEST_F(CApiTest, AllProblemsOfAPlanAreListed) {
  const Answer answer(lading_plan(request(R"(, "skeleton": {"schema": "lading.skeleton/1", "tensors": [
    {"name": "a", "kind": "parameter", "shape": [7], "dtype": "F32"},
    {"name": "missing.1", "kind": "parameter", "shape": [2], "dtype": "F32"},
    {"name": "missing.2", "kind": "parameter", "shape": [2], "dtype": "F32"}]})")
                                      .c_str()));
  EXPECT_EQ(answer.exit_code(), 4);
  for (const char* name : {"missing.1", "missing.2", R"("a")", R"("b")"}) EXPECT_THAT(answer.text(), HasSubstr(name));
}

TEST_F(CApiTest, AWrongNumberOfMemoriesIsRefused) {
  const Answer plan(lading_plan(request().c_str()));
  const auto memories = memories_for(plan);
  const Answer fewer(lading_load(plan.get(), memories.data(), 1, nullptr));
  EXPECT_EQ(fewer.exit_code(), 2);
  EXPECT_THAT(fewer.text(), AllOf(HasSubstr(R"("expected": "2")"), HasSubstr(R"("found": "1")")));
  EXPECT_EQ(Answer(lading_load(plan.get(), nullptr, 2, nullptr)).exit_code(), 2);
  EXPECT_THAT(floats_["a"], ElementsAre(0, 0));
}

TEST_F(CApiTest, MemoryThatIsTooSmallIsRefusedBeforeAnythingIsWritten) {
  const Answer plan(lading_plan(request().c_str()));
  auto memories = memories_for(plan);
  memories[0].size_bytes = 4;
  memories[1].data = nullptr;
  const Answer answer(lading_load(plan.get(), memories.data(), memories.size(), nullptr));
  EXPECT_EQ(answer.exit_code(), 5);
  EXPECT_THAT(answer.text(), AllOf(HasSubstr(R"("tensor": "a")"), HasSubstr(R"("tensor": "b")"),
                                   HasSubstr(R"("begun": false)"), HasSubstr(R"("stage": "loading")")));
  EXPECT_EQ(Answer(lading_ledger(answer.get())).exit_code(), 2) << "nothing was written";
  EXPECT_THAT(floats_["b"], ElementsAre(0, 0, 0));
}

TEST_F(CApiTest, ARefusedPlanCannotBeLoaded) {
  const Answer plan(lading_plan("{}"));
  EXPECT_EQ(Answer(lading_load(plan.get(), nullptr, 0, nullptr)).exit_code(), 2);
}

TEST_F(CApiTest, ValuesComeFromTheCaller) {
  const Answer plan(lading_plan(request_with_host_value().c_str()));
  const auto memories = memories_for(plan);
  ASSERT_EQ(memories.size(), 3U) << plan.text();
  lading_callbacks callbacks{};
  std::vector<float> value = {8, 9};
  callbacks.user = &value;
  callbacks.value = [](void* user, const char* name, std::uint64_t rank, lading_value* out) {
    const auto& floats = *static_cast<std::vector<float>*>(user);
    if (std::string(name) != "made" || rank != 0) return 1;
    *out = {floats.data(), floats.size() * sizeof(float), "F32"};
    return 0;
  };
  const Answer report(lading_load(plan.get(), memories.data(), memories.size(), &callbacks));
  ASSERT_EQ(report.exit_code(), 0) << report.text();
  EXPECT_THAT(floats_["made"], ElementsAre(8, 9));
}

TEST_F(CApiTest, R64_AValueCanBeDeferred) {
  const Answer plan(lading_plan(request_with_host_value().c_str()));
  const auto memories = memories_for(plan);
  lading_callbacks callbacks{};
  std::vector<float> value;
  callbacks.user = &value;
  callbacks.value = [](void* user, const char*, std::uint64_t, lading_value* out) {
    auto& floats = *static_cast<std::vector<float>*>(user);
    if (out->dtype == nullptr) {
      *out = {nullptr, 2 * sizeof(float), "F32"};
      return 0;
    }
    EXPECT_EQ(out->size_bytes, 2 * sizeof(float));
    EXPECT_STREQ(out->dtype, "F32");
    floats = {8, 9};
    out->data = floats.data();
    return 0;
  };
  const Answer report(lading_load(plan.get(), memories.data(), memories.size(), &callbacks));
  ASSERT_EQ(report.exit_code(), 0) << report.text();
  EXPECT_THAT(floats_["made"], ElementsAre(8, 9));
}

TEST_F(CApiTest, DigestsOfBytesAreThoseOfTheirParts) {
  EXPECT_THAT(Answer(lading_digest("\7", 1, 0)).text(), HasSubstr("4ce9a061c1c9697bfb17e12a0a0e0ab9"));
  EXPECT_THAT(Answer(lading_digest(nullptr, 0, 0)).text(), HasSubstr("00000000000000000000000000000000"));
  const Answer none(lading_digest(nullptr, 4, 0));
  EXPECT_EQ(none.exit_code(), 2);
  EXPECT_THAT(none.text(), HasSubstr("NULL"));
}

TEST_F(CApiTest, ACallbackThatFailsIsQuoted) {
  const Answer plan(lading_plan(request_with_host_value().c_str()));
  const auto memories = memories_for(plan);
  const auto load = [&](decltype(lading_callbacks::value) function) {
    lading_callbacks callbacks{};
    callbacks.value = function;
    const Answer report(lading_load(plan.get(), memories.data(), memories.size(), &callbacks));
    EXPECT_EQ(report.exit_code(), 5);
    EXPECT_THAT(report.text(), AllOf(HasSubstr(R"("tensor": "made")"), HasSubstr(R"("begun": false)")));
    return report.text();
  };
  EXPECT_THAT(load([](void*, const char*, std::uint64_t, lading_value*) {
                lading_set_error("the table is \"lost\"");
                return 1;
              }),
              HasSubstr(R"(the table is \"lost\")"));
  EXPECT_THAT(load([](void*, const char*, std::uint64_t, lading_value*) { return 1; }),
              AllOf(HasSubstr("did not supply the value"), Not(HasSubstr("lost"))))
      << "an old text is not told again";
  EXPECT_THAT(load([](void*, const char*, std::uint64_t, lading_value* out) {
                *out = {"12345678", 8, "float32"};
                return 0;
              }),
              HasSubstr("an unknown dtype"));
  EXPECT_THAT(load(nullptr), HasSubstr("the caller did not supply it"));
}

TEST_F(CApiTest, TheFlagAndProgressStopALoad) {
  const Answer plan(lading_plan(request_with_host_value().c_str()));
  const auto memories = memories_for(plan);

  static int flag;
  flag = 0;
  lading_callbacks callbacks{};
  callbacks.cancelled = &flag;
  callbacks.value = [](void*, const char*, std::uint64_t, lading_value* out) {
    static const std::vector<float> kValue = {8, 9};
    *out = {kValue.data(), kValue.size() * sizeof(float), "F32"};
    return 0;
  };
  EXPECT_EQ(Answer(lading_load(plan.get(), memories.data(), memories.size(), &callbacks)).exit_code(), 0);
  flag = 1;
  const Answer cancelled(lading_load(plan.get(), memories.data(), memories.size(), &callbacks));
  EXPECT_EQ(cancelled.exit_code(), 5);
  EXPECT_THAT(cancelled.text(), HasSubstr(R"("code": "cancelled")"));
}

TEST_F(CApiTest, R45_AFileThatWasReplacedSinceItWasPlannedIsRefused) {
  const Answer plan(lading_plan(request().c_str()));
  const auto memories = memories_for(plan);
  const std::string file = dir_.read("model.safetensors");
  dir_.write("model.safetensors", file.substr(0, file.size() - 1));
  const Answer report(lading_load(plan.get(), memories.data(), memories.size(), nullptr));
  EXPECT_EQ(report.exit_code(), 5);
  EXPECT_THAT(report.text(), AllOf(HasSubstr(R"("code": "file_changed")"), HasSubstr(R"("begun": true)")));
}

TEST_F(CApiTest, ALedgerIsVerifiedAndDifferencesAreSix) {
  const Answer plan(lading_plan(request().c_str()));
  const auto memories = memories_for(plan);
  const Answer report(lading_load(plan.get(), memories.data(), memories.size(), nullptr));
  const Answer ledger(lading_ledger(report.get()));
  ASSERT_EQ(ledger.exit_code(), 0);
  const std::string to_verify = request(R"(, "ledger": )" + ledger.text());
  EXPECT_EQ(Answer(lading_verify(to_verify.c_str())).exit_code(), 0);
  std::string file = dir_.read("model.safetensors");
  file.back() = '\1';
  dir_.write("model.safetensors", file);
  const Answer differs(lading_verify(to_verify.c_str()));
  EXPECT_EQ(differs.exit_code(), 6);
  EXPECT_THAT(differs.text(), AllOf(HasSubstr(R"("ok": false)"), HasSubstr("values_differ")));
}

TEST_F(CApiTest, InspectsAndListsGpus) {
  const Answer inspection(lading_inspect(request().c_str()));
  EXPECT_EQ(inspection.exit_code(), 0);
  EXPECT_THAT(inspection.text(),
              HasSubstr(R"({"name": "b", "dtype": "F32", "shape": [3], "shard": "model.safetensors")"));
  const Answer gpus(lading_gpus());
  EXPECT_EQ(gpus.exit_code(), 0);
  EXPECT_THAT(gpus.text(), HasSubstr(R"("gpus": [)"));
  const Answer plan(lading_plan(request().c_str()));
  EXPECT_THAT(Answer(lading_plan_document(plan.get())).text(), HasSubstr("lading.plan/1"));
}

}  // namespace
}  // namespace lading
