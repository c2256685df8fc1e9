// Answers of the C ABI, and a checkpoint to ask it about.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "lading/lading_c.h"
#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace lading {

// An answer, freed with this object.
class Answer {
 public:
  explicit Answer(lading_handle* handle) : handle_(handle) {}
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;
  ~Answer() { lading_free(handle_); }

  [[nodiscard]] const lading_handle* get() const { return handle_; }
  [[nodiscard]] int exit_code() const { return lading_exit_code(handle_); }
  [[nodiscard]] std::string text() const { return lading_text(handle_, nullptr); }

 private:
  lading_handle* handle_;
};

class CApiTest : public ::testing::Test {
 protected:
  // Two F32 vectors: "a" is 1, 2 and "b" is 3, 4, 5.
  void SetUp() override {
    const std::vector<float> values = {1, 2, 3, 4, 5};
    std::string data(values.size() * sizeof(float), '\0');
    std::memcpy(data.data(), values.data(), data.size());
    dir_.write("model.safetensors", test::safetensors_bytes(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                                            R"("b":{"dtype":"F32","shape":[3],"data_offsets":[8,20]}})",
                                                            data));
  }

  [[nodiscard]] std::string request(const std::string& more = "") const {
    return R"({"schema": "lading.request/1", "checkpoint": ")" + dir_.path() + "\"" + more + "}";
  }

  // The checkpoint's two, and "made", whose value the caller has.
  [[nodiscard]] std::string request_with_host_value() const {
    const auto tensor = [](const std::string& name, const std::string& more) {
      return R"({"name": ")" + name + R"(", "dtype": "F32")" + more + "}";
    };
    return request(
        R"(, "skeleton": {"schema": "lading.skeleton/1", "tensors": [)" +
        tensor("a", R"(, "kind": "parameter", "shape": [2])") + ", " +
        tensor("b", R"(, "kind": "parameter", "shape": [3])") + ", " +
        tensor("made", R"(, "kind": "non_persistent_buffer", "shape": [2], "derivation": {"kind": "host"})") + "]}");
  }

  // Memory for all destinations of a plan, zeroed.
  std::vector<lading_memory> memories_for(const Answer& plan) {
    std::uint64_t count = 0;
    const lading_destination* destinations = lading_destinations(plan.get(), &count);
    std::vector<lading_memory> memories;
    for (std::uint64_t i = 0; i < count; ++i) {
      auto& floats = floats_[destinations[i].name];
      floats.assign(destinations[i].size_bytes / sizeof(float), 0);
      memories.push_back({floats.data(), destinations[i].size_bytes});
    }
    return memories;
  }

  test::TempDir dir_;
  std::map<std::string, std::vector<float>> floats_;
};

}  // namespace lading
