// Checkpoints of packed weights as real libraries write them, loaded by their config.json alone into models that know
// nothing of it: each rank's memory against the matrices that the files were made of (R48).
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "api/tests/dequantize_fixture_for_tests.h"
#include "api/tests/dequantize_schemes_for_tests.h"

namespace lading {
namespace {

using layout::Cut;
using mapping::Expression;
using test::Digests128;
using test::Dims;
using test::FileTensor;
using test::flat;
using test::placed;
using test::SchemeSpec;
using test::Zeros;

std::string config_of(const std::string& quantization) {
  return R"({"model_type": "llama", "quantization_config": )" + quantization + "}";
}

std::string compressed_config(const std::string& format, const std::string& weights) {
  return config_of(
      R"({"quant_method": "compressed-tensors", "quantization_status": "compressed", "format": ")" + format +
      R"(", "ignore": ["norm"], "config_groups": {"group_0": {"targets": ["Linear"], "weights": )" + weights + "}}}");
}

// One scheme: its config, and weights of which the first two have the same shape.
class DequantizeSchemes : public test::DequantizeFixture {
 protected:
  void expect_right(const std::string& config, std::vector<FileTensor> weights) {
    dir_.write("ckpt/config.json", config);
    for (FileTensor& weight : weights) checkpoint_.add(std::move(weight));
    FileTensor norm;
    norm.key = "norm.weight";
    norm.dtype = DType::kBF16;
    norm.shape = {7};
    for (std::uint64_t i = 0; i < 7; ++i) test::append_code(norm.bytes, 0x3F00 + 19 * i, norm.dtype);
    checkpoint_.add(std::move(norm));
    write();
    by_names();
    by_mapping();
  }

  // By the config alone, on every kind of cut.
  void by_names() {
    by_config_ = true;
    for (std::size_t i = 0; i < checkpoint_.tensors().size(); ++i) {
      const FileTensor& tensor = checkpoint_.tensors()[i];
      const DType result = tensor.raw.empty() ? DType::kBF16 : test::kResults[i % test::kResults.size()];
      add_model(checkpoint_.model_tensor(tensor.key, result, Expression::source(tensor.key)));
    }
    std::string ledger;
    const Digests128 wanted = load({}, &ledger);
    expect_verified(ledger, checkpoint_.tensors().front().key);
    for (const std::uint64_t ranks : Dims{2, 3, 4, 7, 16}) {
      for (const Cut& cut : {Cut::shard({0}, 0), Cut::shard({0}, 1), test::strided({0}, 0, 2), flat({0})}) {
        layout::Layout layout;
        layout.mesh = layout::Mesh({{"x", ranks}});
        layout.rules = {placed("norm*", {Cut::shard({0}, 0)}), placed("*", {cut})};
        EXPECT_EQ(load(layout, &ledger), wanted) << ranks;
        if (ranks == 3) expect_verified(ledger, checkpoint_.tensors().front().key);
      }
    }
  }

  // The mapping of an ordinary checkpoint, which names weights that no file has.
  void by_mapping() {
    by_config_ = false;
    model_.clear();
    const auto source = [&](std::size_t i) { return Expression::source(checkpoint_.tensors()[i].key); };
    const std::vector<std::pair<std::string, Expression>> all = {
        {"stacked", Expression::stack(0, {source(0), source(1)})},
        {"concat", Expression::concat(1, {source(1), source(0)})},
        {"turned", Expression::permute(Expression::stack(1, {source(1), source(0)}), {1, 0, 2})},
        {"sliced", Expression::slice(Expression::slice(source(0), 1, 3, 13), 0, 1, 3)},
        {"norm", source(checkpoint_.tensors().size() - 1)}};
    for (const auto& [name, expression] : all) {
      const bool is_3d = checkpoint_.tensors().front().shape.size() == 3;
      if (is_3d && name == "turned") continue;
      add_model(checkpoint_.model_tensor(name, DType::kBF16, expression));
    }
    for (std::size_t i = 2; i + 1 < checkpoint_.tensors().size(); ++i) {
      const std::string name = "other" + std::to_string(i);
      add_model(checkpoint_.model_tensor(name, DType::kF32, source(i)));
    }
    std::string ledger;
    const Digests128 wanted = load({}, &ledger);
    expect_verified(ledger, checkpoint_.tensors().front().key);
    for (const std::uint64_t ranks : Dims{3, 5}) {
      layout::Layout layout;
      layout.mesh = layout::Mesh({{"x", ranks}});
      layout.rules = {placed("stacked", {flat({0})}), placed("sliced", {Cut::shard({0}, 1)}),
                      placed("*", {Cut::shard({0}, 0)})};
      EXPECT_EQ(load(layout), wanted) << ranks;
    }
  }

  static std::vector<SchemeSpec> specs(std::vector<std::pair<std::uint64_t, std::uint64_t>> shapes, unsigned width,
                                       std::uint64_t group, DType scales) {
    std::vector<SchemeSpec> made;
    for (const auto& [out, in] : shapes) {
      SchemeSpec spec;
      spec.module = "model.layers." + std::to_string(made.size()) + ".up_proj";
      spec.out = out;
      spec.in = in;
      spec.width = width;
      spec.group = group;
      spec.scales = scales;
      made.push_back(spec);
    }
    return made;
  }

  std::vector<FileTensor> drawn(const std::vector<SchemeSpec>& all,
                                const std::function<FileTensor(const SchemeSpec&)>& draw) {
    std::vector<FileTensor> made;
    made.reserve(all.size());
    for (const SchemeSpec& spec : all) made.push_back(draw(spec));
    return made;
  }

  std::mt19937_64 random_{21};
};

TEST_F(DequantizeSchemes, R48_PackQuantizedInt4InGroups) {
  expect_right(compressed_config("pack-quantized",
                                 R"({"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group",
                                     "group_size": 32})"),
               drawn(specs({{10, 64}, {10, 64}, {16, 96}, {7, 80}, {9, 16}}, 4, 32, DType::kBF16),
                     [&](const SchemeSpec& spec) { return test::pack_quantized(random_, spec, Zeros::kNone); }));
}

TEST_F(DequantizeSchemes, R48_PackQuantizedInt4Asymmetric) {
  expect_right(compressed_config("pack-quantized",
                                 R"({"num_bits": 4, "type": "int", "symmetric": false, "strategy": "group",
                                     "group_size": 16})"),
               drawn(specs({{16, 64}, {16, 64}, {11, 48}, {24, 40}, {40, 16}, {1, 32}, {8, 16}}, 4, 16, DType::kBF16),
                     [&](const SchemeSpec& spec) { return test::pack_quantized(random_, spec, Zeros::kStored); }));
}

// actorder: "group"; of some weights, groups count up.
TEST_F(DequantizeSchemes, R48_PackQuantizedInActivationOrder) {
  expect_right(
      compressed_config("pack-quantized",
                        R"({"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group",
                                     "group_size": 32, "actorder": "group"})"),
      drawn(specs({{10, 64}, {10, 64}, {16, 96}, {7, 32}, {3, 128}}, 4, 32, DType::kBF16), [&](SchemeSpec spec) {
        if (spec.in != 96) spec = test::in_activation_order(random_, std::move(spec));
        return test::pack_quantized(random_, spec, Zeros::kNone);
      }));
}

TEST_F(DequantizeSchemes, R48_PackQuantizedInActivationOrderAsymmetric) {
  expect_right(
      compressed_config("pack-quantized",
                        R"({"num_bits": 8, "type": "int", "symmetric": false, "strategy": "group",
                                     "group_size": 16, "actorder": "group"})"),
      drawn(specs({{10, 64}, {10, 64}, {11, 48}, {24, 80}, {1, 32}}, 8, 16, DType::kF16), [&](const SchemeSpec& spec) {
        return test::pack_quantized(random_, test::in_activation_order(random_, spec), Zeros::kStored);
      }));
}

TEST_F(DequantizeSchemes, R48_PackQuantizedInt8OfRows) {
  expect_right(compressed_config("pack-quantized",
                                 R"({"num_bits": 8, "type": "int", "symmetric": true, "strategy": "channel",
                                     "group_size": null})"),
               drawn(specs({{10, 64}, {10, 64}, {16, 20}, {1, 8}}, 8, 0, DType::kF16),
                     [&](const SchemeSpec& spec) { return test::pack_quantized(random_, spec, Zeros::kNone); }));
}

TEST_F(DequantizeSchemes, R48_PackQuantizedInt8OfRowsAsymmetric) {
  expect_right(compressed_config("pack-quantized",
                                 R"({"num_bits": 8, "type": "int", "symmetric": false, "strategy": "channel"})"),
               drawn(specs({{10, 64}, {10, 64}, {16, 20}, {5, 8}}, 8, 0, DType::kBF16),
                     [&](const SchemeSpec& spec) { return test::pack_quantized(random_, spec, Zeros::kStored); }));
}

TEST_F(DequantizeSchemes, R48_IntQuantized) {
  const auto all = specs({{10, 64}, {10, 64}, {16, 21}, {1, 8}}, 8, 0, DType::kBF16);
  auto weights = drawn(all, [&](const SchemeSpec& spec) { return test::int_quantized(random_, spec, Zeros::kNone); });
  SchemeSpec with = all.back();
  with.module = "asymmetric";
  with.out = 9;
  weights.push_back(test::int_quantized(random_, with, Zeros::kStored));
  expect_right(
      compressed_config("int-quantized", R"({"num_bits": 8, "type": "int", "symmetric": true, "strategy": "channel"})"),
      std::move(weights));
}

TEST_F(DequantizeSchemes, R48_Nvfp4OfCompressedTensors) {
  expect_right(compressed_config("nvfp4-pack-quantized",
                                 R"({"num_bits": 4, "type": "float", "symmetric": true, "strategy": "tensor_group",
                                     "group_size": 16})"),
               drawn(specs({{10, 64}, {10, 64}, {3, 48}, {5, 24}, {6, 16}}, 4, 16, DType::kF8E4M3),
                     [&](const SchemeSpec& spec) { return test::nvfp4(random_, spec, TensorScale::kDivisor); }));
}

TEST_F(DequantizeSchemes, R48_Nvfp4OfModelOpt) {
  expect_right(config_of(R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16})"),
               drawn(specs({{10, 64}, {10, 64}, {3, 48}, {5, 24}, {6, 16}}, 4, 16, DType::kF8E4M3),
                     [&](const SchemeSpec& spec) { return test::nvfp4(random_, spec, TensorScale::kFactor); }));
}

TEST_F(DequantizeSchemes, R48_Mxfp4OfCompressedTensors) {
  expect_right(compressed_config("mxfp4-pack-quantized",
                                 R"({"num_bits": 4, "type": "float", "symmetric": true, "strategy": "group",
                                     "group_size": 32, "scale_dtype": "torch.uint8"})"),
               drawn(specs({{10, 64}, {10, 64}, {3, 96}, {5, 48}}, 4, 32, DType::kF8E8M0),
                     [&](const SchemeSpec& spec) { return test::mxfp4_packed(random_, spec); }));
}

TEST_F(DequantizeSchemes, R48_Mxfp4Blocks) {
  auto all = specs({{10, 64}, {10, 64}, {3, 96}, {8, 32}}, 4, 32, DType::kF8E8M0);
  expect_right(config_of(R"({"quant_method": "mxfp4", "modules_to_not_convert": ["norm"]})"),
               drawn(all, [&](const SchemeSpec& spec) { return test::mxfp4_blocks(random_, spec, 3); }));
}

TEST_F(DequantizeSchemes, R48_Mxfp4BlocksOfMatrices) {
  auto all = specs({{10, 64}, {10, 64}, {3, 96}, {8, 32}}, 4, 32, DType::kF8E8M0);
  expect_right(config_of(R"({"quant_method": "mxfp4"})"),
               drawn(all, [&](const SchemeSpec& spec) { return test::mxfp4_blocks(random_, spec, 0); }));
}

class DequantizeGptq : public DequantizeSchemes {
 protected:
  void expect_bits(unsigned width, const std::string& format, std::int64_t less) {
    const std::string config = R"({"quant_method": "gptq", "bits": )" + std::to_string(width) +
                               R"(, "group_size": 32, "desc_act": false, "sym": true)" + format + "}";
    expect_right(config_of(config),
                 drawn(specs({{16, 64}, {16, 64}, {32, 96}, {48, 32}, {16, 80}, {16, 16}}, width, 32, DType::kF16),
                       [&](const SchemeSpec& spec) { return test::gptq(random_, spec, less); }));
  }
};

TEST_F(DequantizeGptq, R48_TwoBits) { expect_bits(2, "", 1); }
TEST_F(DequantizeGptq, R48_FourBits) { expect_bits(4, R"(, "checkpoint_format": "gptq")", 1); }
TEST_F(DequantizeGptq, R48_EightBits) { expect_bits(8, "", 1); }
TEST_F(DequantizeGptq, R48_TheSecondFormat) { expect_bits(4, R"(, "checkpoint_format": "gptq_v2")", 0); }

// desc_act: true
TEST_F(DequantizeGptq, R48_ActivationOrder) {
  for (const unsigned width : {2U, 4U, 8U}) {
    SCOPED_TRACE(width);
    checkpoint_ = {};
    model_.clear();
    expect_right(config_of(R"({"quant_method": "gptq", "group_size": 32, "desc_act": true, "bits": )" +
                           std::to_string(width) + "}"),
                 drawn(specs({{16, 64}, {16, 64}, {32, 96}, {48, 32}, {16, 80}, {16, 16}}, width, 32, DType::kF16),
                       [&](SchemeSpec spec) {
                         if (spec.in != 96) spec = test::in_activation_order(random_, std::move(spec));
                         return test::gptq(random_, spec, 1);
                       }));
  }
}

TEST_F(DequantizeGptq, R48_ActivationOrderWithTheReferencesArithmetic) {
  policy_.arithmetic = policy::Arithmetic::kReference;
  auto all = specs({{16, 64}, {16, 64}, {8, 96}}, 4, 32, DType::kF16);
  for (SchemeSpec& spec : all) spec.product = DType::kF16;
  expect_right(config_of(R"({"quant_method": "gptq", "group_size": 32, "desc_act": true, "bits": 4,
                             "checkpoint_format": "gptq_v2"})"),
               drawn(all, [&](const SchemeSpec& spec) {
                 return test::gptq(random_, test::in_activation_order(random_, spec), 0);
               }));
}

// The file may say anything; nothing is written before its groups are known to have scales.
TEST_F(DequantizeGptq, R48_AGroupWithoutAScaleFailsTheLoad) {
  const std::vector<std::pair<std::uint64_t, std::string>> all = {
      {2, "2"}, {0xFFFFFFFF, "-1"}, {0x80000000, "-2147483648"}, {0x7FFFFFFF, "2147483647"}};
  for (const auto& [group, text] : all) {
    checkpoint_ = {};
    model_.clear();
    SchemeSpec spec = test::in_activation_order(random_, specs({{16, 64}}, 4, 32, DType::kF16).front());
    spec.order = std::vector<std::uint64_t>(64, 1);
    FileTensor weight = test::gptq(random_, spec, 1);
    std::vector<std::uint64_t> order = spec.order;
    order[41] = group;
    weight.raw.back() = test::raw_key(weight.raw.back().key, DType::kI32, {64}, order);
    dir_.write("ckpt/config.json",
               config_of(R"({"quant_method": "gptq", "group_size": 32, "desc_act": true, "bits": 4})"));
    checkpoint_.add(std::move(weight));
    write();
    by_config_ = true;
    const FileTensor& tensor = checkpoint_.tensors().front();
    add_model(checkpoint_.model_tensor(tensor.key, DType::kF16, Expression::source(tensor.key)));
    layout::Layout layout;
    layout.mesh = layout::Mesh({{"x", 3}});
    layout.rules = {placed("*", {Cut::shard({0}, 0)})};
    const auto loaded = materialize(request(layout));
    ASSERT_FALSE(loaded);
    const Error& error = loaded.error().problems.front();
    EXPECT_EQ(error.code, Code::kScale) << error.text();
    EXPECT_EQ(error.file, "model.safetensors");
    EXPECT_EQ(error.tensor, "model.layers.0.up_proj.g_idx");
    EXPECT_EQ(error.expected, "groups from 0 to 1");
    EXPECT_EQ(error.found, text + " at element 41");
  }
}

TEST_F(DequantizeGptq, R48_OneScaleForARow) {
  expect_right(config_of(R"({"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": false})"),
               drawn(specs({{16, 64}, {16, 64}, {32, 40}}, 4, 0, DType::kF16),
                     [&](const SchemeSpec& spec) { return test::gptq(random_, spec, 1); }));
}

TEST_F(DequantizeSchemes, R48_AwqGemm) {
  expect_right(config_of(R"({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm",
                             "zero_point": true, "modules_to_not_convert": null})"),
               drawn(specs({{16, 64}, {16, 64}, {32, 96}, {8, 32}, {24, 35}, {8, 15}}, 4, 32, DType::kF16),
                     [&](const SchemeSpec& spec) { return test::awq(random_, spec); }));
}

TEST_F(DequantizeSchemes, R48_AwqOfWholeColumns) {
  expect_right(config_of(R"({"quant_method": "awq", "w_bit": 4, "q_group_size": -1, "version": "GEMM"})"),
               drawn(specs({{16, 64}, {16, 64}, {32, 96}}, 4, 0, DType::kF16),
                     [&](const SchemeSpec& spec) { return test::awq(random_, spec); }));
}

// 8-bit floats, whose scales are powers of two in a U8 each.
TEST_F(DequantizeSchemes, R48_Mxfp8) {
  std::vector<FileTensor> weights;
  for (const SchemeSpec& spec : specs({{10, 64}, {10, 64}, {3, 96}, {5, 40}}, 8, 32, DType::kF8E8M0)) {
    FileTensor tensor =
        test::random_tensor(random_, spec.module, DType::kF8E4M3, DType::kF8E8M0, {spec.out, spec.in}, {1, 32});
    tensor.scales_key = spec.module + ".weight_scale";
    tensor.scales_dtype = DType::kU8;
    tensor.scale_dtype = DType::kF8E8M0;
    weights.push_back(std::move(tensor));
  }
  expect_right(config_of(R"({"quant_method": "mxfp8"})"), std::move(weights));
}

// compressed-tensors multiplies in the dtype of the scales: BF16 holds every code, and rounds the product.
TEST_F(DequantizeSchemes, R48_WithTheReferencesArithmetic) {
  auto all = specs({{10, 64}, {10, 64}}, 8, 0, DType::kBF16);
  for (SchemeSpec& spec : all) spec.product = DType::kBF16;
  policy_.arithmetic = policy::Arithmetic::kReference;
  expect_right(compressed_config("pack-quantized",
                                 R"({"num_bits": 8, "type": "int", "symmetric": true, "strategy": "channel"})"),
               drawn(all, [&](const SchemeSpec& spec) { return test::pack_quantized(random_, spec, Zeros::kNone); }));
}

}  // namespace
}  // namespace lading
