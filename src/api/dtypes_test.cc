// lading_dtypes(): the dtype contract of a model, through the C ABI.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "lading/lading_c.h"
#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace lading {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Answered {
  int exit_code = 0;
  std::string text;
};

Answered ask_dtypes(const char* request) {
  lading_handle* handle = lading_dtypes(request);
  Answered answered{lading_exit_code(handle), lading_text(handle, nullptr)};
  lading_free(handle);
  return answered;
}

// l.w is BF16 in the file, l.norm.w F32; both are constructed in F32. The tower t is real and frozen.
class DTypesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_.write("model.safetensors",
               test::safetensors_bytes(R"({"l.w":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
                                       R"("l.norm.w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                                       std::string(8, '\0')));
  }

  [[nodiscard]] std::string request(const std::string& more, const std::string& tensors = "") const {
    const auto tensor = [](const std::string& name, const std::string& rest) {
      return R"({"name": ")" + name + R"(", "dtype": "F32", )" + rest + "}";
    };
    const std::string real = R"("shape": [2], "presence": "real", "device": "cpu")";
    return R"({"schema": "lading.request/1", "skeleton": {"schema": "lading.skeleton/1", "tensors": [)" +
           tensor("l.w", R"("kind": "parameter", "shape": [2], "requires_grad": true)") + ", " +
           tensor("l.norm.w", R"("kind": "parameter", "shape": [1], "requires_grad": true)") + ", " +
           tensor("t.bias", R"("kind": "non_persistent_buffer", )" + real) + ", " +
           tensor("t.w", R"("kind": "non_persistent_buffer", )" + real) + tensors + "]}, " +
           R"("policy": {"schema": "lading.policy/1", "compute_dtype": "BF16"})" + more + "}";
  }

  [[nodiscard]] std::string checkpoint() const { return R"(, "checkpoint": ")" + dir_.path() + "\""; }

  test::TempDir dir_;
};

TEST_F(DTypesTest, R26_EveryTensorsDtypesWithTheirRules) {
  const Answered answer = ask_dtypes(request(checkpoint()).c_str());
  ASSERT_EQ(answer.exit_code, 0) << answer.text;
  EXPECT_THAT(answer.text,
              AllOf(HasSubstr(R"("kind": "dtypes")"),
                    HasSubstr(R"("name": "l.w", "kind": "parameter", "checkpoint_dtype": "BF16", "storage_dtype": )"
                              R"("BF16", "compute_dtype": "BF16", "storage_rule": "R22", "compute_rule": "R26")"),
                    HasSubstr(R"("name": "l.norm.w", "kind": "parameter", "checkpoint_dtype": "F32", )"
                              R"("storage_dtype": "F32", "compute_dtype": "F32")"),
                    HasSubstr(R"("units": [])")));
}

TEST_F(DTypesTest, R27_UnitsInTheOrderOfTheCalls) {
  const std::string units = R"(, "units": {"modules": ["l"], "containers": [], "duplicates": [], "ignored": []})";
  const Answered answer = ask_dtypes(request(checkpoint() + units).c_str());
  ASSERT_EQ(answer.exit_code, 0) << answer.text;
  EXPECT_THAT(answer.text, HasSubstr(R"({"modules": ["l.norm"], "storage_dtype": "F32", "compute_dtype": "F32", )"
                                     R"("output_dtype": "BF16", "wished": false, "parameters": ["l.norm.w"]})"));
  EXPECT_LT(answer.text.find(R"("modules": ["l.norm"])"), answer.text.find(R"("modules": ["l"])"));
  EXPECT_LT(answer.text.find(R"("modules": ["l"])"), answer.text.find(R"("modules": [""])"));
}

TEST_F(DTypesTest, R28_WithoutACheckpointWhatIsThereCounts) {
  const std::string frozen =
      R"(, {"name": "t.p", "kind": "parameter", "shape": [2], "dtype": "F32", "presence": "real", "device": "cpu"})";
  const Answered answer = ask_dtypes(request("", frozen).c_str());
  ASSERT_EQ(answer.exit_code, 0) << answer.text;
  EXPECT_THAT(answer.text,
              AllOf(HasSubstr(R"("frozen_subtrees": [)"), HasSubstr(R"("t")"), Not(HasSubstr("checkpoint_dtype")),
                    HasSubstr(R"("storage_dtype": "F32", "compute_dtype": "BF16", "storage_rule": "R14", )"
                              R"("compute_rule": "R28")"),
                    HasSubstr(R"("cast": "BF16"})")));
}

TEST_F(DTypesTest, R27_R53_WhatNoUnitCanTakeIsRefusedWithEverythingElse) {
  const std::string more = R"(, {"name": "scale", "kind": "parameter", "shape": [], "dtype": "F32"})"
                           R"(, {"name": "l.norm.b", "kind": "parameter", "shape": [1], "dtype": "BF16", )"
                           R"("requires_grad": true})";
  const Answered answer = ask_dtypes(request(R"(, "units": {})", more).c_str());
  EXPECT_EQ(answer.exit_code, 4);
  EXPECT_THAT(answer.text, AllOf(HasSubstr("R53"), HasSubstr("R27"), HasSubstr("l.norm.b")));
  const Answered ignoring = ask_dtypes(request(R"(, "units": {"ignored": ["scale", "l.norm.b"]})", more).c_str());
  EXPECT_EQ(ignoring.exit_code, 0) << ignoring.text;
}

TEST_F(DTypesTest, WhatMakesNoSenseIsRefused) {
  EXPECT_EQ(ask_dtypes(nullptr).exit_code, 2);
  EXPECT_EQ(ask_dtypes(R"({"schema": "lading.request/1"})").exit_code, 2) << "no skeleton";
  const Answered answer = ask_dtypes(request(R"(, "ranks": [0], "units": {"module": []})").c_str());
  EXPECT_EQ(answer.exit_code, 2);
  EXPECT_THAT(answer.text, AllOf(HasSubstr("$.ranks: unknown field"), HasSubstr("$.units.module")));
  EXPECT_EQ(ask_dtypes(request(R"(, "checkpoint": "/nowhere/at/all")").c_str()).exit_code, 3);
}

}  // namespace
}  // namespace lading
