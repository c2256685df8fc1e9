// FP8 tensors that are dequantized while they load, under every cut: each rank's memory against an oracle that knows
// the definitions of the formats and of the layouts, and nothing of the engine (R48).
// Packed codes: dequantize_packed_test.cc.
//
// LADING_DEQUANTIZE_ROUNDS=N: the layouts with N choices of dtypes and values for each shape instead of one.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <variant>
#include <vector>

#include "api/tests/dequantize_cuts_for_tests.h"
#include "api/tests/dequantize_fixture_for_tests.h"
#include "support/by_strategy.h"

namespace lading {
namespace {

using layout::Cut;
using mapping::Expression;
using test::Checkpoint;
using test::Digests128;
using test::Dims;
using test::FileTensor;
using test::flat;
using test::kPayloads;
using test::kResults;
using test::kScales;
using test::ModelTensor;
using test::placed;

using Dequantize = test::DequantizeFixture;

// One rank, all codes of a payload against many scales of every dtype: the oracle's own arithmetic against the
// engine's.
TEST_F(Dequantize, R48_EveryPayloadTimesAScaleIsTheExactProductRoundedOnce) {
  constexpr std::uint64_t kRows = 150;
  std::mt19937_64 random(1);
  for (const DType payload : kPayloads) {
    for (const DType scales : kScales) {
      const std::string name = std::string(lading::name(payload)) + "." + std::string(lading::name(scales));
      FileTensor tensor = test::random_tensor(random, name, payload, scales, {kRows, 256}, {1, 256});
      for (std::uint64_t i = 0; i < kRows * 256; ++i) tensor.bytes[i] = static_cast<char>(i % 256);
      for (const DType result : kResults) {
        Checkpoint one;
        one.add(tensor);
        add_model(one.model_tensor(name + "." + std::string(lading::name(result)), result, Checkpoint::leaf(tensor)));
      }
      checkpoint_.add(std::move(tensor));
    }
  }
  write();
  std::string ledger;
  EXPECT_EQ(load({}, &ledger).size(), kPayloads.size() * kScales.size() * kResults.size());
  EXPECT_TRUE(verify_ledger(ledger).differences.empty());
}

// Worked out by hand, so that the oracle is no mirror of the engine.
TEST(DequantizeOracle, KnowsTheFormats) {
  using test::dequantized_code;
  const auto bf16 = [](std::uint64_t payload, std::uint64_t scale) {
    return dequantized_code(payload, DType::kF8E4M3, scale, DType::kF32, DType::kBF16);
  };
  EXPECT_EQ(bf16(0x38, 0x3F000000), 0x3F00U) << "1 * 0.5";
  EXPECT_EQ(bf16(0x7E, 0x3F800000), 0x43E0U) << "448";
  EXPECT_EQ(bf16(0x81, 0x3F800000), 0xBB00U) << "-2^-9";
  EXPECT_EQ(bf16(0x38, 0x3F808000), 0x3F80U) << "1 + 2^-8: a tie, to even";
  EXPECT_EQ(bf16(0x38, 0x3F818000), 0x3F82U) << "1 + 3 * 2^-8: a tie, to even";
  EXPECT_EQ(bf16(0x38, 0x3F808001), 0x3F81U) << "above the tie";
  EXPECT_EQ(bf16(0x39, 0x3F808000), 0x3F91U) << "1.125 * (1 + 2^-8) = 1 + 16.5625 / 128";
  EXPECT_EQ(bf16(0x7F, 0x3F800000), 0x7FF0U) << "NaN";
  EXPECT_EQ(bf16(0xB8, 0), 0x8000U) << "-0";
  EXPECT_EQ(bf16(0x7E, 0x7F7FFFFF), 0x7F80U) << "infinity";
  EXPECT_EQ(bf16(0x38, 1), 0U) << "2^-149";
  EXPECT_EQ(bf16(0x38, 0x00008001), 1U) << "just above half of the least subnormal";
  EXPECT_EQ(bf16(0x38, 0x00008000), 0U) << "half of it";
  const auto f16 = [](std::uint64_t payload, std::uint64_t scale) {
    return dequantized_code(payload, DType::kF8E5M2, scale, DType::kF8E8M0, DType::kF16);
  };
  EXPECT_EQ(f16(0x3C, 127), 0x3C00U) << "1 * 2^0";
  EXPECT_EQ(f16(0x7B, 127), 0x7B00U) << "57344";
  EXPECT_EQ(f16(0x7B, 128), 0x7C00U) << "too large";
  EXPECT_EQ(f16(0xFC, 0), 0xFC00U) << "-infinity";
  EXPECT_EQ(f16(0x01, 119), 1U) << "2^-16 * 2^-8";
  EXPECT_EQ(f16(0x01, 118), 0U) << "half of that: a tie";
  EXPECT_EQ(f16(0x03, 118), 2U) << "1.5 of that: a tie";
  EXPECT_EQ(dequantized_code(0xFC, DType::kF8E5M2, 0, DType::kF32, DType::kF32), 0x7FC00000U) << "infinity * 0";
  EXPECT_EQ(dequantized_code(0x80, DType::kF8E4M3Fnuz, 0x3F800000, DType::kF32, DType::kBF16), 0x7FC0U);
  EXPECT_EQ(dequantized_code(0x40, DType::kF8E4M3Fnuz, 0x3F800000, DType::kF32, DType::kBF16), 0x3F80U) << "1";
  EXPECT_EQ(dequantized_code(0x40, DType::kF8E5M2Fnuz, 0x3C00, DType::kF16, DType::kF64), 0x3FF0000000000000U) << "1";
}

// Blocks of 8-bit floats: most of 4 x 3.
class DequantizeCuts : public test::DequantizeCutsFixture {
 protected:
  void make_tensors(std::uint64_t seed) override {
    std::mt19937_64 random(seed);
    for (const std::uint64_t rows : Dims{1, 3, 4, 5, 7, 8, 10, 12}) {
      for (const std::uint64_t cols : Dims{1, 2, 3, 4, 6, 7, 9}) {
        const DType result = kResults[random() % kResults.size()];
        const std::string name = "t" + std::to_string(checkpoint_.tensors().size());
        FileTensor tensor =
            test::random_tensor(random, name, kPayloads[random() % kPayloads.size()],
                                kScales[random() % kScales.size()], {rows, cols}, block_for(random() % 8, rows, cols));
        if (random() % 2 == 0) std::erase(tensor.scales_shape, 1);
        tensor.product = test::random_product(random);
        Expression leaf = Checkpoint::leaf(tensor);
        add({std::move(tensor), std::move(leaf)}, result);
      }
    }
  }

  // Others have a scale for each row, for each column, or for the whole tensor.
  static Dims block_for(std::uint64_t choice, std::uint64_t rows, std::uint64_t cols) {
    if (choice == 0) return {1, cols};
    if (choice == 1) return {rows, 1};
    if (choice == 2) return {rows, cols};
    return {4, 3};
  }
};

TEST_F(DequantizeCuts, R48_OnUpTo16Ranks) { expect_right_on_ranks("t55.weight"); }
TEST_F(DequantizeCuts, R48_OnTwoAxes) { expect_right_on_two_axes("t55.weight"); }

class DequantizeFused : public test::DequantizeFusedFixture {
 protected:
  void add(const std::string& name, const Dims& shape, const Dims& block) override {
    FileTensor tensor = test::random_tensor(random_, name, kPayloads[random_() % kPayloads.size()],
                                            kScales[random_() % kScales.size()], shape, block);
    tensor.product = test::random_product(random_);
    Expression leaf = Checkpoint::leaf(tensor);
    DequantizeFusedFixture::add(name, {std::move(tensor), std::move(leaf)});
  }
};

TEST_F(DequantizeFused, R48_PartsAreDequantizedBeforeTheyAreMoved) { expect_right("gate.weight", "f1.weight"); }

// Nothing but the files: config.json says the block, and names say what belongs together.
TEST_F(Dequantize, R48_ByTheConfigAlone) {
  by_config_ = true;
  std::mt19937_64 random(4);
  checkpoint_.add(test::random_tensor(random, "a", DType::kF8E4M3, DType::kF32, {300, 200}, {128, 128}));
  checkpoint_.add(test::random_tensor(random, "b", DType::kF8E4M3, DType::kBF16, {128, 384}, {128, 128}));
  checkpoint_.add(test::random_tensor(random, "c", DType::kF8E4M3, DType::kF8E8M0, {2, 200, 129}, {1, 128, 128}));
  dir_.write("ckpt/config.json",
             R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})");
  write();
  for (const FileTensor& tensor : checkpoint_.tensors())
    add_model(checkpoint_.model_tensor(tensor.key, DType::kBF16, Checkpoint::leaf(tensor)));
  std::string ledger;
  const Digests128 wanted = load({}, &ledger);
  expect_verified(ledger, "b.weight");
  for (const std::uint64_t ranks : Dims{2, 3, 4, 16}) {
    for (const Cut& cut : {Cut::shard({0}, 0), Cut::shard({0}, 1), flat({0})}) {
      layout::Layout layout;
      layout.mesh = layout::Mesh({{"x", ranks}});
      layout.rules = {placed("*", {cut})};
      EXPECT_EQ(load(layout), wanted) << ranks;
    }
  }
}

// In F32 first, as the reference implementation of this scheme does.
TEST_F(Dequantize, R48_WithTheReferencesArithmetic) {
  by_config_ = true;
  std::mt19937_64 random(8);
  FileTensor tensor = test::random_tensor(random, "a", DType::kF8E4M3, DType::kF32, {300, 200}, {128, 128});
  // Times 9/8, 11/8, 13/8 or 15/8 a number near a tie of BF16, which F32 rounds to the tie.
  tensor.scales_bytes.clear();
  for (const std::uint64_t scale : {0x3FE238E4U, 0x3FD871C7U, 0x3FB7A2E9U, 0x3FA5745DU, 0x3F953B14U, 0x3FC6EEEFU})
    test::append_code(tensor.scales_bytes, scale, DType::kF32);
  checkpoint_.add(tensor);
  dir_.write("ckpt/config.json",
             R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})");
  write();
  const ModelTensor exact = checkpoint_.model_tensor("a.weight", DType::kBF16, Checkpoint::leaf(tensor));
  Checkpoint reference;
  tensor.product = DType::kF32;
  reference.add(tensor);
  add_model(reference.model_tensor("a.weight", DType::kBF16, Checkpoint::leaf(tensor)));
  ASSERT_NE(model_.at("a.weight").bytes, exact.bytes);
  policy_.arithmetic = policy::Arithmetic::kReference;
  std::string ledger;
  load({}, &ledger);
  EXPECT_TRUE(verify_ledger(ledger).differences.empty());
}

// Without a config, where there is one answer: a scale for the tensor, or for each row.
TEST_F(Dequantize, R48_ByNamesAlone) {
  by_config_ = true;
  std::mt19937_64 random(5);
  for (const Dims& scales : {Dims{}, Dims{1}, Dims{1, 1}, Dims{6}, Dims{6, 1}}) {
    const std::string name = "t" + std::to_string(checkpoint_.tensors().size());
    const bool by_rows = !scales.empty() && scales.front() == 6;
    FileTensor tensor = test::random_tensor(random, name, DType::kF8E4M3, DType::kF32, {6, 5}, {by_rows ? 1U : 6U, 5});
    tensor.scales_key = name + ".weight_scale";
    tensor.scales_shape = scales;
    add_model((checkpoint_.add(tensor), checkpoint_.model_tensor(tensor.key, DType::kF32, Checkpoint::leaf(tensor))));
  }
  write();
  const Digests128 wanted = load({});
  layout::Layout layout;
  layout.mesh = layout::Mesh({{"x", 4}});
  layout.rules = {placed("*", {Cut::shard({0}, 0)})};
  EXPECT_EQ(load(layout), wanted);
}

// More than is read at once: pieces begin within rows and within blocks.
TEST_F(Dequantize, R48_TensorsOfSeveralReads) {
  std::mt19937_64 random(7);
  const FileTensor wide = test::random_tensor(random, "wide", DType::kF8E4M3, DType::kF32, {1100, 1001}, {128, 128});
  const FileTensor tall = test::random_tensor(random, "tall", DType::kF8E5M2, DType::kBF16, {220'001, 5}, {1000, 2});
  for (const FileTensor& tensor : {wide, tall}) checkpoint_.add(tensor);
  write();
  add_model(checkpoint_.model_tensor("flat.wide", DType::kBF16, Checkpoint::leaf(wide)));
  add_model(checkpoint_.model_tensor("shard1.wide", DType::kBF16, Checkpoint::leaf(wide)));
  add_model(checkpoint_.model_tensor("shard1.tall", DType::kF32, Checkpoint::leaf(tall)));
  add_model(checkpoint_.model_tensor("flat.turned", DType::kBF16, Expression::permute(Checkpoint::leaf(wide), {1, 0})));
  std::string ledger;
  const Digests128 wanted = load({}, &ledger);
  EXPECT_TRUE(verify_ledger(ledger).differences.empty());
  layout::Layout layout;
  layout.mesh = layout::Mesh({{"x", 3}});
  layout.rules = {placed("flat.*", {flat({0})}), placed("shard1.*", {Cut::shard({0}, 1)})};
  EXPECT_EQ(load(layout), wanted);
}

// Another key of a tie is compared after it was multiplied: it may have other payloads and scales.
TEST_F(Dequantize, R50_TiedKeysMustHaveTheSameProducts) {
  FileTensor one;
  one.key = "a.weight";
  one.scales_key = "a.weight_scale_inv";
  one.shape = {6, 2};
  one.block = {4, 2};
  one.scales_shape = {2, 1};
  one.bytes = std::string(12, '\x38');  // 1
  test::append_code(one.scales_bytes, 0x3F800000, DType::kF32);
  test::append_code(one.scales_bytes, 0x40000000, DType::kF32);
  FileTensor two = one;
  two.key = "b.weight";
  two.scales_key = "b.weight_scale_inv";
  two.bytes.replace(0, 8, std::string(8, '\x30'));               // 0.5
  two.scales_bytes.replace(0, 4, std::string("\0\0\0\x40", 4));  // 2
  checkpoint_.add(one);
  checkpoint_.add(two);
  add_model(checkpoint_.model_tensor("a", DType::kBF16, Checkpoint::leaf(one)));
  add_model(checkpoint_.model_tensor("b", DType::kBF16, Checkpoint::leaf(two)));
  ASSERT_EQ(model_.at("a").bytes, model_.at("b").bytes);
  layout::Layout layout;
  layout.mesh = layout::Mesh({{"x", 2}});
  layout.rules = {placed("*", {Cut::shard({0}, 0)})};
  LoadRequest request = this->request(layout);
  std::get<model::Skeleton>(*request.plan.skeleton).tie_classes = {{"a", "b"}};
  write();
  const auto good = materialize(request);
  ASSERT_TRUE(good) << good.error().problems.front().text();
  write("b.weight");
  const auto bad = materialize(request);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().problems.front().rule, "R50") << bad.error().problems.front().text();
  EXPECT_FALSE(verify_ledger(ledger_json(*good)).differences.empty());
}

// A block may be larger than any tensor: then it is one block.
TEST_F(Dequantize, R48_HugeBlocks) {
  std::mt19937_64 random(6);
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 60;
  FileTensor rows = test::random_tensor(random, "rows", DType::kF8E4M3, DType::kF32, {6, 5}, {1, 5});
  FileTensor cols = test::random_tensor(random, "cols", DType::kF8E5M2, DType::kBF16, {6, 5}, {6, 2});
  rows.block = {1, kHuge};
  cols.block = {kHuge, 2};
  for (const FileTensor& tensor : {rows, cols}) {
    checkpoint_.add(tensor);
    add_model(checkpoint_.model_tensor(tensor.key, DType::kF32, Checkpoint::leaf(tensor)));
  }
  write();
  std::string ledger;
  const Digests128 wanted = load({}, &ledger);
  EXPECT_TRUE(verify_ledger(ledger).differences.empty());
  layout::Layout layout;
  layout.mesh = layout::Mesh({{"x", 4}});
  layout.rules = {placed("*", {Cut::shard({0}, 0)})};
  EXPECT_EQ(load(layout), wanted);
  for (const std::uint64_t block : {std::uint64_t{1} << 63, ~std::uint64_t{0} - 3, ~std::uint64_t{0}}) {
    for (const Dims& dims : {Dims{1, block}, Dims{block, 2}, Dims{block, block}}) {
      LoadRequest request = this->request({});
      mapping::Mapping changed = std::get<mapping::Mapping>(*request.plan.mapping);
      changed.rules[1] = mapping::Rule::build_one(
          "huge", "rows.weight", Expression::dequantize("rows.weight", "rows.weight_scale_inv", Shape(dims)));
      request.plan.mapping = changed;
      const auto refused = make_plan(request.plan);
      ASSERT_FALSE(refused) << "a ledger of it could not be read";
      EXPECT_EQ(refused.error().problems.front().rule, "R48") << refused.error().problems.front().text();
    }
  }
}

}  // namespace
}  // namespace lading
