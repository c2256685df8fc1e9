// Values that the caller hands in one by one: asked for when they are written.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "lading/load.h"
#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace lading {
namespace {

// A file with "w", and two values of one element that no file has: "a" and "b".
class DeferredValue : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_.write("ckpt/model.safetensors",
               test::safetensors_bytes(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234"));
    request_.plan.checkpoint.path = dir_.path("ckpt");
    request_.plan.ranks.reset();
    request_.plan.skeleton = Document::text(R"({"schema": "lading.skeleton/1", "ties": [], "tensors": [
        {"name": "w", "kind": "parameter", "shape": [1], "dtype": "F32"},
        {"name": "a", "kind": "non_persistent_buffer", "shape": [1], "dtype": "F32", "derivation": {"kind": "host"}},
        {"name": "b", "kind": "non_persistent_buffer", "shape": [1], "dtype": "F32", "derivation": {"kind": "host"}}]})");
    request_.memory = [this](const DestinationInfo& d) -> Result<std::span<std::byte>> {
      return std::as_writable_bytes(std::span(memory_.at(d.name)));
    };
    request_.value = [this](const std::string&, std::uint64_t) -> Result<HostTensor> {
      EXPECT_EQ(memory_["a"][0], 0) << "nothing is written before all were asked for";
      return HostTensor{{}, DType::kF32, {}, sizeof(float)};
    };
  }

  test::TempDir dir_;
  LoadRequest request_;
  std::map<std::string, std::vector<float>> memory_ = {{"w", {0}}, {"a", {0}}, {"b", {0}}};
};

TEST_F(DeferredValue, R64_EachIsWrittenBeforeTheNextIsAskedFor) {
  float only = 0;  // the memory of both
  request_.deferred_value = [&](const std::string& name, std::uint64_t, const HostTensor& deferred) {
    EXPECT_EQ(deferred.deferred_bytes, sizeof(float));
    EXPECT_EQ(memory_["a"][0], name == "a" ? 0 : 7);
    only = name == "a" ? 7 : 8;
    return Result<HostTensor>(HostTensor{std::as_bytes(std::span(&only, 1)), DType::kF32});
  };
  const auto report = materialize(request_);
  ASSERT_TRUE(report.has_value()) << report.error().problems.front().text();
  EXPECT_EQ(memory_["a"][0], 7);
  EXPECT_EQ(memory_["b"][0], 8);
}

TEST_F(DeferredValue, R39_AllThatDoNotComeAreTold) {
  const auto never = materialize(request_);
  ASSERT_FALSE(never.has_value());
  EXPECT_FALSE(never.error().begun) << "nobody has them later";
  request_.deferred_value = [](const std::string&, std::uint64_t, const HostTensor& deferred) {
    return Result<HostTensor>(deferred);  // again none
  };
  const auto later = materialize(request_);
  ASSERT_FALSE(later.has_value());
  EXPECT_EQ(later.error().problems.size(), 2U);
}

}  // namespace
}  // namespace lading
