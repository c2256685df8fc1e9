// Loads of small checkpoints from real files, through the public API.
#include "lading/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <thread>

#include "lading/sample.h"
#include "support/by_strategy.h"
#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace lading {
namespace {

using test::by_strategy;
using ::testing::HasSubstr;

std::string floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

// One F32 vector "w".
std::string f32_file(const std::vector<float>& values) {
  const std::string data = floats(values);
  return test::safetensors_bytes(R"({"w":{"dtype":"F32","shape":[)" + std::to_string(values.size()) +
                                     R"(],"data_offsets":[0,)" + std::to_string(data.size()) + "]}}",
                                 data);
}

std::vector<float> as_floats(std::span<const std::byte> memory) {
  std::vector<float> values(memory.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), memory.data(), values.size() * sizeof(float));
  return values;
}

class LoadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_.write("ckpt/model.safetensors", f32_file({1, 2, 3, 4, 5, 6}));
    request_.plan.checkpoint.path = dir_.path("ckpt");
    request_.plan.ranks.reset();
    request_.poison = PoisonFirst::kYes;
  }

  LoadReport load() {
    auto report = materialize(request_);
    if (!report) {
      ADD_FAILURE() << report.error().problems.front().text();
      return {};
    }
    return *std::move(report);
  }

  LoadFailure failure() {
    auto report = materialize(request_);
    EXPECT_FALSE(report.has_value());
    return report ? LoadFailure{} : report.error();
  }

  // Two keys of one tie: 1, 2 and 1, `other`.
  void write_tied(float other) {
    dir_.write("ckpt/model.safetensors",
               test::safetensors_bytes(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
                   "b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
                                       floats({1, 2, 1, other})));
    skeleton(R"({"name": "a", "kind": "parameter", "shape": [2], "dtype": "F32"},
        {"name": "b", "kind": "parameter", "shape": [2], "dtype": "F32"})",
             R"([["a", "b"]])");
  }

  void skeleton(const std::string& tensors, const std::string& ties = "[]") {
    request_.plan.skeleton =
        Document::text(R"({"schema": "lading.skeleton/1", "tensors": [)" + tensors + R"(], "ties": )" + ties + "}");
  }
  void policy(const std::string& fields) {
    request_.plan.policy = Document::text(R"({"schema": "lading.policy/1", )" + fields + "}");
  }

  test::TempDir dir_;
  LoadRequest request_;
};

constexpr const char* kW = R"({"name": "w", "kind": "parameter", "shape": [6], "dtype": "F32"})";

TEST_F(LoadTest, BringsMemoryOfItsOwn) {
  const LoadReport report = load();
  ASSERT_EQ(report.tensors.size(), 1U);
  EXPECT_EQ(as_floats(report.tensors[0].memory), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(report.tensors[0].digest.size(), 32U);
  EXPECT_EQ(report.read_bytes, 24U);
}

TEST_F(LoadTest, FillsMemoryThatIsBorrowed) {
  std::map<std::uint64_t, std::vector<std::byte>> memory;
  request_.plan.layout = by_strategy("fsdp2", "dp=4");
  request_.memory = [&](const DestinationInfo& d) -> Result<std::span<std::byte>> {
    memory[d.rank].resize(d.size_bytes);
    return std::span(memory[d.rank]);
  };
  load();
  EXPECT_EQ(as_floats(memory[0]), (std::vector<float>{1, 2}));
  EXPECT_EQ(as_floats(memory[2]), (std::vector<float>{5, 6}));
  EXPECT_TRUE(memory[3].empty()) << "R53: 6 rows on 4 ranks are 2, 2, 2, 0";
}

TEST_F(LoadTest, EveryProblemWithMemoryIsTold) {
  request_.plan.layout = by_strategy("ddp", "dp=3");
  request_.memory = [](const DestinationInfo&) -> Result<std::span<std::byte>> {
    return fail(Error(Code::kOutOfMemory, "none left"));
  };
  const LoadFailure failed = failure();
  EXPECT_EQ(failed.problems.size(), 3U);
  EXPECT_EQ(failed.exit_code(), Exit::kLoad);
}

TEST_F(LoadTest, R24_OneConversionFromTheFilesBits) {
  dir_.write("ckpt/model.safetensors", f32_file({1 + 0x1p-10F}));
  policy(R"("dtype": "BF16")");
  EXPECT_EQ(as_floats(load().tensors[0].memory), (std::vector<float>{1 + 0x1p-10F})) << "never narrowed by a request";
  policy(R"("dtype": "BF16", "cast": "exact")");
  const LoadReport exact = load();
  EXPECT_EQ(exact.tensors[0].destination.dtype, DType::kBF16);
  std::uint16_t bits = 0;
  std::memcpy(&bits, exact.tensors[0].memory.data(), 2);
  EXPECT_EQ(bits, 0x3F80) << "1 + 2^-10 is nearest to 1";
}

TEST_F(LoadTest, R33_InfinitiesAndNansAreData) {
  const float inf = std::numeric_limits<float>::infinity();
  dir_.write("ckpt/model.safetensors", f32_file({inf, -inf, std::numeric_limits<float>::quiet_NaN(), -0.0F}));
  policy(R"("dtype": "BF16", "cast": "exact")");
  const LoadReport report = load();
  std::vector<std::uint16_t> bits(4);
  std::memcpy(bits.data(), report.tensors[0].memory.data(), 8);
  EXPECT_EQ(bits, (std::vector<std::uint16_t>{0x7F80, 0xFF80, 0x7FC0, 0x8000}));
}

// Element by element of the whole tensor, from all ranks.
std::vector<float> gather(const LoadReport& report, const std::string& name, std::uint64_t rows, std::uint64_t columns,
                          const std::string& how) {
  std::vector<float> whole(rows * columns, std::nanf(""));
  std::uint64_t row = 0;
  std::uint64_t column = 0;
  std::uint64_t flat = 0;
  for (const LoadedTensor& tensor : report.tensors) {
    if (tensor.destination.name != name) continue;
    const std::vector<float> part = as_floats(tensor.memory);
    if (how == "flat") {
      for (const float value : part) {
        if (flat < whole.size()) whole[flat++] = value;
      }
      continue;
    }
    const Shape& local = tensor.destination.local_shape;
    for (std::uint64_t i = 0; i < part.size(); ++i) {
      whole[(row + i / local[1]) * columns + column + i % local[1]] = part[i];
    }
    (how == "rows" ? row : column) += how == "rows" ? local[0] : local[1];
  }
  return whole;
}

TEST_F(LoadTest, R16_R20_InitialValuesAreTheSameUnderEverySharding) {
  skeleton(std::string(kW) + R"(, {"name": "new", "kind": "parameter", "shape": [10, 6], "dtype": "F32",
      "init": {"kind": "normal", "mean": 0, "std": 0.5, "zero_row": 9}})");
  policy(R"("allow_missing": ["new"], "seed": 7)");
  const std::vector<float> whole = gather(load(), "new", 10, 6, "rows");
  EXPECT_NE(whole[0], whole[1]);
  for (std::size_t c = 0; c < 6; ++c) EXPECT_EQ(whole[54 + c], 0) << "the padding row";
  const auto bits = [](const std::vector<float>& values) {
    std::vector<std::uint32_t> out;
    for (const float value : values) out.push_back(std::bit_cast<std::uint32_t>(value));
    return out;
  };
  for (const int world : {2, 3, 4, 8}) {
    const std::string mesh = "dp=" + std::to_string(world);
    request_.plan.layout = by_strategy("fsdp2", mesh);
    EXPECT_EQ(bits(gather(load(), "new", 10, 6, "rows")), bits(whole)) << world;
    request_.plan.layout = by_strategy("zero3", mesh);
    EXPECT_EQ(bits(gather(load(), "new", 10, 6, "flat")), bits(whole)) << world;
  }
  for (const int world : {2, 3}) {
    layout::ByStrategy wanted = by_strategy("tp", "tp=" + std::to_string(world));
    wanted.tp_plan = {{"new", layout::TpStyle::kRowwise}};
    request_.plan.layout = wanted;
    EXPECT_EQ(bits(gather(load(), "new", 10, 6, "columns")), bits(whole)) << world;
  }
  policy(R"("allow_missing": ["new"], "seed": 8)");
  request_.plan.layout = layout::ByStrategy{};
  EXPECT_NE(bits(gather(load(), "new", 10, 6, "rows")), bits(whole)) << "another seed";
}

TEST_F(LoadTest, R19_SampledInF32AndCastOnce) {
  const auto tensor = [](const std::string& dtype) {
    return std::string(kW) + R"(, {"name": "new", "kind": "parameter", "shape": [64], "dtype": ")" + dtype +
           R"(", "init": {"kind": "uniform", "low": -1, "high": 1}})";
  };
  policy(R"("allow_missing": ["new"])");
  skeleton(tensor("F32"));
  const std::vector<float> wide = as_floats(load().tensors[0].memory);
  skeleton(tensor("F64"));
  const LoadReport report = load();
  std::vector<double> cast(64);
  std::memcpy(cast.data(), report.tensors[0].memory.data(), 512);
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(cast[i], static_cast<double>(wide[i]));
}

TEST_F(LoadTest, R17_ReplicasAreBitEqual) {
  request_.plan.layout = by_strategy("hsdp", "replicate=2,shard=2");
  const LoadReport report = load();
  ASSERT_EQ(report.tensors.size(), 4U);
  EXPECT_EQ(report.tensors[0].digest, report.tensors[2].digest);
  EXPECT_EQ(report.tensors[1].digest, report.tensors[3].digest);
  EXPECT_NE(report.tensors[0].digest, report.tensors[1].digest);
}

TEST_F(LoadTest, R56_PaddingIsZero) {
  request_.plan.layout = by_strategy("zero3", "dp=4");
  const LoadReport report = load();
  ASSERT_EQ(report.tensors.size(), 4U);
  EXPECT_EQ(as_floats(report.tensors[2].memory), (std::vector<float>{5, 6}));
  EXPECT_EQ(as_floats(report.tensors[3].memory), (std::vector<float>{0, 0}));
}

TEST_F(LoadTest, R62_ThreadsAndASecondRunChangeNothing) {
  ASSERT_TRUE(write_sample_checkpoint(dir_.path("sample")).has_value());
  request_.plan.checkpoint.path = dir_.path("sample");
  const std::string once = ledger_json(load());
  EXPECT_EQ(ledger_json(load()), once);
  for (const std::uint32_t threads : {1U, 2U, 7U}) {
    request_.threads = threads;
    EXPECT_EQ(ledger_json(load()), once);
  }
  for (const auto& [word, method] : kReadMethods) {
    request_.read_method = method;
    EXPECT_EQ(ledger_json(load()), once) << word;
  }
}

TEST_F(LoadTest, R7_R14_AKeptValueIsNotTouched) {
  skeleton(std::string(kW) + R"(, {"name": "table", "kind": "non_persistent_buffer", "shape": [2], "dtype": "F32",
      "presence": "real", "device": "cpu"})");
  std::vector<float> table = {7, 8};
  std::vector<float> w(6);
  request_.memory = [&](const DestinationInfo& d) -> Result<std::span<std::byte>> {
    return std::as_writable_bytes(std::span(d.name == "table" ? table : w));
  };
  load();
  EXPECT_EQ(table, (std::vector<float>{7, 8}));
  EXPECT_EQ(w, (std::vector<float>{1, 2, 3, 4, 5, 6}));
}

TEST_F(LoadTest, R66_ACallComesWhenItsInputsAreComplete) {
  skeleton(std::string(kW) + R"(, {"name": "sum", "kind": "non_persistent_buffer", "shape": [1], "dtype": "F32",
      "derivation": {"kind": "call", "inputs": ["w"]}},
      {"name": "twice", "kind": "non_persistent_buffer", "shape": [1], "dtype": "F32",
      "derivation": {"kind": "call", "inputs": ["sum"]}})");
  std::map<std::string, std::vector<float>> memory = {{"w", {0, 0, 0, 0, 0, 0}}, {"sum", {0}}, {"twice", {0}}};
  request_.memory = [&](const DestinationInfo& d) -> Result<std::span<std::byte>> {
    return std::as_writable_bytes(std::span(memory.at(d.name)));
  };
  std::map<std::string, float> made;
  request_.value = [&](const std::string& name, std::uint64_t) -> Result<HostTensor> {
    float& value = made[name];
    if (name == "sum") {
      for (const float one : memory["w"]) value += one;
    } else {
      value = 2 * memory["sum"][0];
    }
    return HostTensor{std::as_bytes(std::span(&value, 1)), DType::kF32};
  };
  load();
  EXPECT_EQ(memory["sum"][0], 21);
  EXPECT_EQ(memory["twice"][0], 42);
}

TEST_F(LoadTest, R6_AValueThatNobodyHasIsNamed) {
  skeleton(std::string(kW) + R"(, {"name": "table", "kind": "non_persistent_buffer", "shape": [2], "dtype": "F32",
      "derivation": {"kind": "host"}})");
  const LoadFailure failed = failure();
  EXPECT_FALSE(failed.begun);
  EXPECT_EQ(failed.problems.front().tensor, "table");
  EXPECT_EQ(failed.problems.front().rule, "R6");
}

TEST_F(LoadTest, R50_TiedKeysThatDifferAreFoundBeforeAByteIsWritten) {
  write_tied(2);
  EXPECT_EQ(load().tensors.size(), 1U) << "one storage";
  write_tied(3);
  const LoadFailure failed = failure();
  EXPECT_FALSE(failed.begun);
  EXPECT_EQ(failed.problems.front().code, Code::kValuesDiffer);
  EXPECT_EQ(failed.problems.front().rule, "R50");
  EXPECT_THAT(failed.problems.front().found, HasSubstr("element 1"));
}

TEST_F(LoadTest, R50_WhatMayLeaveItsTieLeavesItIfItsValuesAreOthers) {
  request_.plan.policy = Document::text(R"({"schema": "lading.policy/1", "may_untie": ["b"]})");
  write_tied(2);
  EXPECT_EQ(load().tensors.size(), 1U) << "the values are the same: one storage";
  write_tied(3);
  EXPECT_EQ(load().tensors.size(), 2U);
}

TEST_F(LoadTest, R11_MemoryThatOverlapsIsRefusedBeforeAByteIsWritten) {
  request_.plan.layout = by_strategy("ddp", "dp=2");
  std::vector<float> both(6, 7);
  request_.memory = [&](const DestinationInfo&) -> Result<std::span<std::byte>> {
    return std::as_writable_bytes(std::span(both));
  };
  const LoadFailure failed = failure();
  EXPECT_FALSE(failed.begun);
  EXPECT_EQ(failed.problems.front().rule, "R11");
  EXPECT_EQ(both, std::vector<float>(6, 7));
}

TEST_F(LoadTest, R6_AMissingValueIsToldBeforeAnythingIsRead) {
  skeleton(std::string(kW) + R"(, {"name": "table", "kind": "non_persistent_buffer", "shape": [2], "dtype": "F32",
      "derivation": {"kind": "call", "inputs": ["w"]}})");
  std::vector<float> w(6, 7);
  std::vector<float> table(2, 7);
  request_.memory = [&](const DestinationInfo& d) -> Result<std::span<std::byte>> {
    return std::as_writable_bytes(std::span(d.name == "w" ? w : table));
  };
  const LoadFailure failed = failure();
  EXPECT_FALSE(failed.begun);
  EXPECT_EQ(failed.problems.front().tensor, "table");
  EXPECT_EQ(w, std::vector<float>(6, 7));
}

TEST_F(LoadTest, R14_AKeptValueThatNobodyBroughtIsRefused) {
  skeleton(std::string(kW) + R"(, {"name": "table", "kind": "non_persistent_buffer", "shape": [2], "dtype": "F32",
      "presence": "real", "device": "cpu"})");
  const LoadFailure failed = failure();
  EXPECT_EQ(failed.problems.front().rule, "R14");
  EXPECT_EQ(failed.exit_code(), Exit::kLoad);
}

TEST_F(LoadTest, PackedConstantsAreZero) {
  dir_.write(
      "ckpt/model.safetensors",
      test::safetensors_bytes(R"({"w":{"dtype":"F4","shape":[3,8],"data_offsets":[0,12]}})", std::string(12, 'x')));
  skeleton(R"({"name": "w", "kind": "parameter", "shape": [3, 8], "dtype": "F4"},
      {"name": "new", "kind": "parameter", "shape": [4], "dtype": "F4", "init": {"kind": "fill", "value": 0}})");
  policy(R"("allow_missing": ["new"])");
  request_.plan.layout = Document::text(R"({"schema": "lading.layout/1", "mesh": [{"name": "dp", "size": 2}],
      "devices": ["cpu", "cpu"],
      "rules": [{"pattern": "w", "cuts": [{"flat": {"pad_multiple": 32}, "axes": ["dp"]}]}]})");
  const LoadReport report = load();
  ASSERT_EQ(report.tensors.size(), 4U);
  for (const LoadedTensor& tensor : report.tensors) {
    if (tensor.destination.name == "new") {
      EXPECT_EQ(tensor.memory[1], std::byte{0});
    }
    if (tensor.destination.name == "w" && tensor.destination.rank == 1) {
      EXPECT_EQ(tensor.memory[3], std::byte{'x'});
      EXPECT_EQ(tensor.memory[4], std::byte{0}) << "24 elements are padded to 32";
    }
  }
}

// Something happens to the file between planning and reading: when memory is asked for, the plan stands.
class ChangingFile : public LoadTest {
 protected:
  LoadFailure fail_after(const std::function<void()>& change) {
    request_.memory = [this, change](const DestinationInfo& d) -> Result<std::span<std::byte>> {
      change();
      memory_.resize(d.size_bytes);
      return std::span(memory_);
    };
    return failure();
  }
  std::vector<std::byte> memory_;
};

TEST_F(ChangingFile, Fault37_Truncated) {
  const LoadFailure failed =
      fail_after([&] { std::filesystem::resize_file(dir_.path("ckpt/model.safetensors"), 100); });
  EXPECT_TRUE(failed.begun);
  EXPECT_EQ(failed.exit_code(), Exit::kLoad);
  EXPECT_EQ(failed.problems.front().code, Code::kFileChanged);
  EXPECT_THAT(failed.ledger, HasSubstr(R"("complete": false)"));
}

TEST_F(ChangingFile, Fault38_ReplacedByRename) {
  dir_.write("other", f32_file({9, 9, 9, 9, 9, 9}));
  const LoadFailure failed =
      fail_after([&] { std::filesystem::rename(dir_.path("other"), dir_.path("ckpt/model.safetensors")); });
  EXPECT_EQ(failed.problems.front().code, Code::kFileChanged);
}

TEST_F(ChangingFile, Fault38_RewrittenInPlace) {
  const LoadFailure failed = fail_after([&] { dir_.write("ckpt/model.safetensors", f32_file({9, 9, 9, 9, 9, 9})); });
  EXPECT_EQ(failed.problems.front().code, Code::kFileChanged);
}

TEST_F(ChangingFile, R45_Removed) {
  const LoadFailure failed = fail_after([&] { std::filesystem::remove(dir_.path("ckpt/model.safetensors")); });
  EXPECT_TRUE(failed.begun);
}

TEST_F(LoadTest, Fault58_ALoadInAForkedChildIsRight) {
  load();  // the parent has loaded before
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto report = materialize(request_);
    const bool right =
        report.has_value() && as_floats(report->tensors[0].memory) == std::vector<float>{1, 2, 3, 4, 5, 6};
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  load();
}

TEST_F(LoadTest, Fault58_LoadsAtOnceInOneProcessAreRight) {
  std::atomic<int> right = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const auto report = materialize(request_);
      if (report && as_floats(report->tensors[0].memory) == std::vector<float>{1, 2, 3, 4, 5, 6}) ++right;
    });
  }
  threads.clear();
  EXPECT_EQ(right, 8);
}

}  // namespace
}  // namespace lading
