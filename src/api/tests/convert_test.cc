// Conversions, compared with the files that they are made of, byte by byte.
#include "lading/convert.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "lading/inspect.h"
#include "lading/verify.h"
#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace lading {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct TestTensor {
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::string bytes;
};
using TestTensors = std::map<std::string, TestTensor>;

std::string file_with(const TestTensors& tensors) {
  std::string header = R"({"__metadata__":{"format":"pt","by":"a test"})";
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header += fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", name, tensor.dtype,
                          fmt::join(tensor.shape, ","), data.size(), data.size() + tensor.bytes.size());
    data += tensor.bytes;
  }
  return test::safetensors_bytes(header + "}", data);
}

// What stands in the files, read with nothing but their headers.
TestTensors read_all(const std::string& directory) {
  const auto found = inspect({directory});
  EXPECT_TRUE(found) << directory;
  TestTensors tensors;
  if (!found) return tensors;
  for (const TensorInfo& tensor : found->tensors) {
    std::ifstream in(found->shards[tensor.shard].path, std::ios::binary);
    std::string bytes(tensor.bytes.size_bytes(), '\0');
    in.seekg(static_cast<std::streamoff>(tensor.bytes.begin));
    in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    tensors[tensor.name] = {tensor.dtype_name, {tensor.shape.begin(), tensor.shape.end()}, bytes};
  }
  return tensors;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::string random_bytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::vector<float> random_floats(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// To nearest, ties to even; of finite numbers.
std::uint16_t rounded_to_bf16(double value) {
  const auto wide = static_cast<float>(value);
  EXPECT_EQ(static_cast<double>(wide), value) << "the oracle would round twice";
  const auto word = std::bit_cast<std::uint32_t>(wide);
  return static_cast<std::uint16_t>((word + 0x7FFFU + (word >> 16 & 1)) >> 16);
}

std::string problems_of(const SaveFailure& failure) {
  std::string text;
  for (const Error& error : failure.problems) text += error.text() + "\n";
  return text;
}

class Convert : public ::testing::Test {
 protected:
  void write(const TestTensors& tensors) { dir_.write("in/model.safetensors", file_with(tensors)); }

  Result<ConvertReport, SaveFailure> run(ConvertRequest request = {}, const std::string& out = "out") {
    request.checkpoint.path = dir_.path("in");
    return convert(request, {dir_.path(out), existing_, Durable::kNo});
  }

  ConvertReport run_well(const ConvertRequest& request = {}) {
    auto report = run(request);
    EXPECT_TRUE(report) << problems_of(report.error());
    return report ? *std::move(report) : ConvertReport();
  }

  void expect_refused(const std::string& part, Exit exit_code, const ConvertRequest& request = {},
                      const std::string& out = "out") {
    const auto report = run(request, out);
    ASSERT_FALSE(report);
    EXPECT_THAT(problems_of(report.error()), HasSubstr(part));
    EXPECT_EQ(report.error().exit_code(), exit_code) << problems_of(report.error());
  }

  // The folder has these entries and no other: no half checkpoint, no temporary directory.
  void expect_names(const std::string& folder, const std::vector<std::string>& wanted) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path(folder))) {
      names.push_back(entry.path().filename());
    }
    EXPECT_THAT(names, ::testing::UnorderedElementsAreArray(wanted));
  }

  test::TempDir dir_;
  ExistingDirectory existing_ = ExistingDirectory::kRefuse;
};

TestTensors odd_tensors() {
  return {{"bool", {"BOOL", {3}, std::string("\1\0\1", 3)}}, {"empty", {"F32", {0, 7}, ""}},
          {"f64", {"F64", {2, 2}, random_bytes(32, 1)}},     {"long", {"BF16", {1, 5003}, random_bytes(10006, 2)}},
          {"packed", {"F4", {3, 64}, random_bytes(96, 3)}},  {"rows", {"F16", {129, 31}, random_bytes(7998, 4)}},
          {"scalar", {"F32", {}, random_bytes(4, 5)}},       {"small", {"I32", {2, 3, 5}, random_bytes(120, 6)}},
          {"thin", {"U8", {3, 1009}, random_bytes(3027, 7)}}};
}

TEST_F(Convert, R69_EveryByteStaysInPartsOfAnySize) {
  write(odd_tensors());
  existing_ = ExistingDirectory::kReplace;
  for (const std::uint64_t part_bytes : {64U, 700U, 4096U, 1U << 20}) {
    ConvertRequest request;
    request.part_bytes = part_bytes;
    request.max_shard_bytes = part_bytes < 1000 ? 3000 : saving::kDefaultMaxShardBytes;
    const ConvertReport report = run_well(request);
    const TestTensors out = read_all(dir_.path("out"));
    const TestTensors in = odd_tensors();
    ASSERT_EQ(out.size(), in.size());
    for (const auto& [name, tensor] : in) {
      EXPECT_EQ(out.at(name).dtype, tensor.dtype) << name;
      EXPECT_EQ(out.at(name).shape, tensor.shape) << name;
      EXPECT_TRUE(out.at(name).bytes == tensor.bytes) << name << ", parts of " << part_bytes;
    }
    EXPECT_GE(report.read_bytes, report.plan.data_bytes);
    if (part_bytes == 1U << 20) {
      EXPECT_EQ(report.read_bytes, report.plan.data_bytes) << "smaller parts read across small gaps";
    }
    EXPECT_EQ(report.written_bytes, report.plan.data_bytes) << "written once";
    EXPECT_EQ(report.plan.files.size() > 1, part_bytes < 1000);
    const std::uint64_t padding_bytes = 64;
    EXPECT_LE(report.part_bytes, std::max<std::uint64_t>(part_bytes, 700) + padding_bytes);
    VerifyRequest verification;
    verification.checkpoint.path = dir_.path("out");
    verification.ledgers = {Document::file(dir_.path("out/lading.ledger.json"))};
    const auto verified = verify(verification);
    ASSERT_TRUE(verified);
    EXPECT_TRUE(verified->differences.empty());
  }
  expect_names("", {"in", "out"});
}

TEST_F(Convert, R69_FloatsAreRoundedOnceAndOthersStay) {
  const std::vector<float> values = random_floats(4001, 8);
  write({{"w", {"F32", {4001}, bytes_of(values)}}, {"n", {"I64", {2}, random_bytes(16, 9)}}});
  ConvertRequest request;
  request.dtype = DType::kBF16;
  request.part_bytes = 1000;
  run_well(request);
  std::vector<std::uint16_t> wanted;
  wanted.reserve(values.size());
  for (const float value : values) wanted.push_back(rounded_to_bf16(value));
  const TestTensors out = read_all(dir_.path("out"));
  EXPECT_EQ(out.at("w").dtype, "BF16");
  EXPECT_TRUE(out.at("w").bytes == bytes_of(wanted));
  EXPECT_EQ(out.at("n").dtype, "I64");
  EXPECT_EQ(out.at("n").bytes, random_bytes(16, 9));
  EXPECT_THAT(dir_.read("out/model.safetensors"), HasSubstr("a test")) << "the metadata stays";
}

TEST_F(Convert, R48_QuantizedWeightsBecomeOrdinaryOnes) {
  // 1.0 in F8_E4M3 is 0x38, and its exponent has a step of 8.
  std::string payload(48, '\0');
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<char>(0x30 + i % 16);
  const std::vector<float> scales = {0.5F, 2.0F, 1.5F, 4.0F};
  write({{"m.weight", {"F8_E4M3", {6, 8}, payload}},
         {"m.weight_scale_inv", {"F32", {2, 2}, bytes_of(scales)}},
         {"m.input_scale", {"F32", {1}, bytes_of(std::vector<float>{1})}},
         {"norm.weight", {"F32", {2}, bytes_of(std::vector<float>{1, 2})}}});
  dir_.write("in/config.json",
             R"({"a": [NaN, "}"], "quantization_config": {"quant_method": "fp8", "weight_block_size": [4, 4]}})");
  ConvertRequest request;
  request.part_bytes = 16;
  const ConvertReport report = run_well(request);
  EXPECT_EQ(report.dequantized, 1U);
  const TestTensors out = read_all(dir_.path("out"));
  ASSERT_EQ(out.size(), 2U) << "no scales";
  EXPECT_EQ(out.at("norm.weight").dtype, "F32");
  EXPECT_EQ(out.at("m.weight").dtype, "BF16");
  std::vector<std::uint16_t> wanted;
  for (std::size_t i = 0; i < payload.size(); ++i) {
    const std::size_t code = i % 16;
    const double value = (1 + static_cast<double>(code % 8) / 8) * (code < 8 ? 0.5 : 1.0);
    wanted.push_back(rounded_to_bf16(value * static_cast<double>(scales[i / 8 / 4 * 2 + i % 8 / 4])));
  }
  EXPECT_TRUE(out.at("m.weight").bytes == bytes_of(wanted));
  EXPECT_EQ(dir_.read("out/config.json"), "{\n  \"torch_dtype\": \"bfloat16\",\"a\": [NaN, \"}\"]}");
}

TEST_F(Convert, R65_AnAdapterIsAddedInPartsOfAnySize) {
  constexpr std::uint64_t kRows = 37;
  constexpr std::uint64_t kWidth = 41;
  constexpr std::uint64_t kRank = 3;
  std::vector<std::uint16_t> weight;
  for (const float value : random_floats(kRows * kWidth, 1)) weight.push_back(rounded_to_bf16(value));
  const std::vector<float> a = random_floats(kRank * kWidth, 2);
  const std::vector<float> b = random_floats(kRows * kRank, 3);
  write({{"x.weight", {"BF16", {kRows, kWidth}, bytes_of(weight)}}, {"y", {"F32", {5}, random_bytes(20, 4)}}});
  dir_.write("lora/adapter_model.safetensors",
             file_with({{"base_model.model.x.lora_A.weight", {"F32", {kRank, kWidth}, bytes_of(a)}},
                        {"base_model.model.x.lora_B.weight", {"F32", {kRows, kRank}, bytes_of(b)}}}));
  dir_.write("lora/adapter_config.json", R"({"peft_type": "LORA", "r": 3, "lora_alpha": 6, "new": null})");
  std::vector<std::uint16_t> wanted;
  for (std::uint64_t i = 0; i < kRows * kWidth; ++i) {
    float sum = 0;
    for (std::uint64_t k = 0; k < kRank; ++k) {
      sum = std::fma(b[i / kWidth * kRank + k], a[k * kWidth + i % kWidth], sum);
    }
    const float old = std::bit_cast<float>(static_cast<std::uint32_t>(weight[i]) << 16);
    wanted.push_back(rounded_to_bf16(old + 2 * sum));  // which is exact but for the addition
  }
  existing_ = ExistingDirectory::kReplace;
  ConvertRequest request;
  request.adapter = CheckpointRef{dir_.path("lora")};
  for (const std::uint64_t part_bytes : {256U, 3000U, 1U << 20}) {
    request.part_bytes = part_bytes;
    const ConvertReport report = run_well(request);
    const TestTensors out = read_all(dir_.path("out"));
    ASSERT_EQ(out.size(), 2U) << "no matrices of the adapter";
    EXPECT_EQ(out.at("x.weight").dtype, "BF16");
    EXPECT_TRUE(out.at("x.weight").bytes == bytes_of(wanted)) << "parts of " << part_bytes;
    EXPECT_EQ(out.at("y").bytes, random_bytes(20, 4));
    ASSERT_EQ(report.merged.size(), 1U);
    EXPECT_EQ(report.merged[0].scale, 2);
    EXPECT_EQ(report.plan.mesh.ranks() > 1, part_bytes < 1U << 20);
  }
  dir_.write("lora/adapter_config.json", R"({"peft_type": "LORA", "r": 4, "lora_alpha": 6})");
  expect_refused("the rank of the adapter's matrices", Exit::kPlan, request);
}

TEST_F(Convert, R48_ThePlanRefusesWhatCannotBeDequantized) {
  write({{"m.weight", {"F8_E4M3", {2, 2}, "abcd"}}});
  dir_.write("in/config.json", R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [4, 4]}})");
  expect_refused("R48", Exit::kPlan, {.dtype = DType::kBF16});
  write({{"m.qweight", {"I32", {2, 4}, random_bytes(32, 1)}},
         {"m.qzeros", {"I32", {1, 4}, random_bytes(16, 1)}},
         {"m.scales", {"F16", {1, 4}, random_bytes(8, 1)}},
         {"m.g_idx", {"I32", {16}, random_bytes(64, 1)}}});
  dir_.write("in/config.json", R"({"quantization_config": {"quant_method": "gptq", "bits": 3, "group_size": 16}})");
  expect_refused("m.qweight", Exit::kPlan);
  expect_names("", {"in"});
}

TEST_F(Convert, TheConfigSaysTheDtypeAndTokenizersAreCopied) {
  write({{"w", {"F16", {2}, random_bytes(4, 1)}}});
  const std::string config = R"({"torch_dtype": "float16", "auto_map": {}, "text_config": {"dtype": "float16"}})";
  dir_.write("in/config.json", config);
  dir_.write("blobs/tokenizer", "many words");
  dir_.link("in/tokenizer.json", "../blobs/tokenizer");
  dir_.write("in/modeling_x.py", "pass");
  dir_.write("in/README.md", "no");
  auto report = run();
  ASSERT_FALSE(report) << "the link leads outside the checkpoint";
  EXPECT_THAT(problems_of(report.error()), HasSubstr("outside_root"));
  expect_names("", {"in", "blobs"});
  std::filesystem::remove(dir_.path("in/tokenizer.json"));
  dir_.write("in/tokenizer.json", "many words");
  EXPECT_THAT(run_well().beside, ElementsAre("config.json", "tokenizer.json", "modeling_x.py"));
  EXPECT_EQ(dir_.read("out/config.json"), config) << "nothing has changed";
  EXPECT_EQ(dir_.read("out/tokenizer.json"), "many words");
  expect_names("out", {"config.json", "tokenizer.json", "modeling_x.py", "model.safetensors", "lading.ledger.json"});
  existing_ = ExistingDirectory::kReplace;
  EXPECT_TRUE(run_well({.dtype = DType::kF32}).replaced);
  EXPECT_EQ(dir_.read("out/config.json"),
            R"({"torch_dtype": "float32", "auto_map": {}, "text_config": {"dtype": "float32"}})");
}

TEST_F(Convert, TheCheckpointItselfIsNeverReplacedNorAddedTo) {
  write(odd_tensors());
  const std::string before = dir_.read("in/model.safetensors");
  dir_.mkdir("elsewhere");
  dir_.link("elsewhere/way", "../in");
  dir_.mkdir("links");
  dir_.write("files/part.safetensors", file_with(odd_tensors()));
  expect_refused("something stands at this path already", Exit::kUsage, {}, "elsewhere");
  existing_ = ExistingDirectory::kReplace;
  for (const char* out : {"in", "in/", "elsewhere/../in", "elsewhere/way", ""}) {
    expect_refused("is in the directory that would be made", Exit::kUsage, {}, out);
  }
  for (const char* out : {"in/new", "elsewhere/way/new"}) {
    expect_refused("would be in the checkpoint", Exit::kUsage, {}, out);
  }
  EXPECT_TRUE(dir_.read("in/model.safetensors") == before);
  expect_names("in", {"model.safetensors"});
}

TEST_F(Convert, WhatIsReadThroughLinksIsNotReplacedEither) {
  dir_.write("all/files/part.safetensors", file_with(odd_tensors()));
  dir_.link("all/ckpt/model.safetensors", "../files/part.safetensors");
  ConvertRequest request;
  request.checkpoint = {dir_.path("all/ckpt"), dir_.path("all")};
  const auto report = convert(request, {dir_.path("all/files"), ExistingDirectory::kReplace, Durable::kNo});
  ASSERT_FALSE(report);
  EXPECT_THAT(problems_of(report.error()), HasSubstr("is in the directory that would be made"));
  EXPECT_TRUE(std::filesystem::exists(dir_.path("all/files/part.safetensors")));
}

TEST_F(Convert, AWrongRequestIsRefused) {
  write(odd_tensors());
  expect_refused("cannot be converted to this dtype", Exit::kUsage, {.dtype = DType::kI8});
  expect_refused("is 0", Exit::kUsage, {.max_shard_bytes = 0});
  expect_refused("is 0", Exit::kUsage, {.part_bytes = 0});
  dir_.write("in/config.json", "{broken");
  expect_refused("config.json", Exit::kPlan, {.dtype = DType::kF32});
  run_well();
  EXPECT_EQ(dir_.read("out/config.json"), "{broken") << "copied, because nothing in it has to change";
}

TEST_F(Convert, R69_AFullDiskLeavesNothing) {
  write({{"w", {"F32", {40000}, random_bytes(160000, 1)}}});
  struct rlimit before = {};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const struct rlimit low = {100000, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &low);
  const auto report = run();
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().exit_code(), Exit::kLoad);
  EXPECT_THAT(problems_of(report.error()), HasSubstr("write_failed"));
  expect_names("", {"in"});
}

TEST_F(Convert, ACancelledConversionLeavesNothing) {
  write(odd_tensors());
  const std::atomic<bool> cancelled = true;
  ConvertRequest request;
  request.cancelled = &cancelled;
  expect_refused("cancelled", Exit::kLoad, request);
  expect_names("", {"in"});
}

}  // namespace
}  // namespace lading
