// Packed codes that are dequantized while they load, under every cut: each rank's memory against an oracle that knows
// the definitions of the formats and of the layouts, and nothing of the engine (R48). By the names of real schemes:
// dequantize_schemes_test.cc.
//
// LADING_DEQUANTIZE_ROUNDS=N: N choices of dtypes, blocks and values for each shape instead of one.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "api/tests/dequantize_cuts_for_tests.h"
#include "api/tests/dequantize_fixture_for_tests.h"
#include "api/tests/dequantize_packed_for_tests.h"

namespace lading {
namespace {

using mapping::Expression;
using test::Checkpoint;
using test::Digests128;
using test::Dims;
using test::ExactNumber;
using test::FileTensor;
using test::kResults;
using test::PackedElement;

using DequantizePacked = test::DequantizeFixture;

ExactNumber number(std::uint64_t code, DType dtype) { return test::value_of(code, test::format_of(dtype)); }

PackedElement packed_element(CodeType type, std::uint64_t code, std::int64_t zero, ExactNumber scale) {
  PackedElement made;
  made.code = test::number_of_code(code, type);
  made.zero = zero;
  made.scale = scale;
  return made;
}

// Worked out by hand, so that the oracle is no mirror of the engine.
TEST(DequantizePackedOracle, KnowsTheCodes) {
  const std::vector<std::uint64_t> f4 = {0, 1, 2, 3, 4, 6, 8, 12};  // halves
  for (std::uint64_t code = 0; code < 16; ++code) {
    EXPECT_EQ(test::number_of_code(code, CodeType::kF4).halves, f4[code % 8]);
    EXPECT_EQ(test::number_of_code(code, CodeType::kF4).negative, code >= 8);
  }
  EXPECT_EQ(test::number_of_code(0x80, CodeType::kI8).halves, 256U);
  EXPECT_TRUE(test::number_of_code(0xFF, CodeType::kI8).negative);
  EXPECT_EQ(test::number_of_code(0xFF, CodeType::kI8).halves, 2U);
  EXPECT_EQ(test::number_of_code(0xFF, CodeType::kU8).halves, 510U);
  EXPECT_FALSE(test::number_of_code(0xFF, CodeType::kU8).negative);
}

TEST(DequantizePackedOracle, SubtractsAndMultiplies) {
  const ExactNumber one = number(0x3F800000, DType::kF32);
  const auto bf16 = [](CodeType type, std::uint64_t code, std::int64_t zero, ExactNumber scale) {
    return test::packed_code(packed_element(type, code, zero, scale), DType::kBF16);
  };
  EXPECT_EQ(bf16(CodeType::kF4, 7, 0, number(0x3F000000, DType::kF32)), 0x4040U) << "6 * 0.5";
  EXPECT_EQ(bf16(CodeType::kF4, 1, 0, number(127, DType::kF8E8M0)), 0x3F00U) << "0.5";
  EXPECT_EQ(bf16(CodeType::kF4, 15, 0, number(130, DType::kF8E8M0)), 0xC240U) << "-6 * 8";
  EXPECT_EQ(bf16(CodeType::kF4, 8, 0, one), 0x8000U) << "-0";
  EXPECT_EQ(bf16(CodeType::kU4, 3, 8, number(0x3DCCCCCD, DType::kF32)), 0xBF00U) << "-5 * 0.1";
  EXPECT_EQ(bf16(CodeType::kU4, 8, 8, one), 0U) << "0";
  EXPECT_EQ(bf16(CodeType::kU4, 8, 8, number(0xBF800000, DType::kF32)), 0x8000U) << "0 * -1";
  EXPECT_EQ(bf16(CodeType::kU4, 15, 16, one), 0xBF80U) << "15 - (15 + 1)";
  EXPECT_EQ(bf16(CodeType::kU2, 0, 4, number(0x3C00, DType::kF16)), 0xC080U) << "0 - (3 + 1)";
  EXPECT_EQ(bf16(CodeType::kI8, 0x80, 0, number(120, DType::kF8E8M0)), 0xBF80U) << "-128 * 2^-7";
  EXPECT_EQ(bf16(CodeType::kI8, 0x80, 127, one), 0xC37FU) << "-255";
  EXPECT_EQ(bf16(CodeType::kU8, 255, 0, number(0x3F810000, DType::kF32)), 0x4380U) << "256.99, where 258 is next";
  EXPECT_EQ(bf16(CodeType::kU8, 255, 0, number(0x3F81, DType::kBF16)), 0x4380U) << "the same";
  EXPECT_EQ(bf16(CodeType::kI8, 0x81, -128, number(0x7E, DType::kF8E4M3)), 0x43E0U) << "(-127 + 128) * 448";
}

TEST(DequantizePackedOracle, DividesExactly) {
  const auto rounded = [](std::uint64_t scale, std::uint64_t divisor, DType to, std::optional<DType> product = {}) {
    PackedElement one = packed_element(CodeType::kF4, 2, 0, number(scale, DType::kF32));
    one.tensor_scale = number(divisor, DType::kF32);
    one.tensor_scale_is = TensorScale::kDivisor;
    return test::packed_code(one, to, product);
  };
  EXPECT_EQ(rounded(0x3F800000, 0x40400000, DType::kF32), 0x3EAAAAABU) << "1 / 3";
  EXPECT_EQ(rounded(0x3F800000, 0x40400000, DType::kBF16), 0x3EABU);
  EXPECT_EQ(rounded(0x3F800000, 0x40400000, DType::kF64), 0x3FD5555555555555U);
  EXPECT_EQ(rounded(0x3F800000, 0xC0400000, DType::kF16), 0xB555U) << "1 / -3";
  EXPECT_EQ(rounded(0x3F818001, 0x3F800001, DType::kBF16), 0x3F81U) << "just below 1 + 3 * 2^-8, a tie";
  EXPECT_EQ(rounded(0x3F818001, 0x3F800001, DType::kBF16, DType::kF32), 0x3F82U) << "which F32 rounds to the tie";
  EXPECT_EQ(rounded(0x3F818000, 0x3F800000, DType::kBF16), 0x3F82U) << "the tie";
  EXPECT_EQ(rounded(0x00000001, 0x7F7FFFFF, DType::kF64), 0x2EA0000010000010U) << "2^-149 / (2^128 - 2^104)";
  EXPECT_EQ(rounded(0x7F7FFFFF, 0x00000001, DType::kF32), 0x7F800000U) << "too large";
  PackedElement nvfp4 = packed_element(CodeType::kF4, 7, 0, number(0x7E, DType::kF8E4M3));
  nvfp4.tensor_scale = number(0x40400000, DType::kF32);
  nvfp4.tensor_scale_is = TensorScale::kDivisor;
  EXPECT_EQ(test::packed_code(nvfp4, DType::kBF16), 0x4460U) << "6 * 448 / 3 = 896";
  nvfp4.tensor_scale_is = TensorScale::kFactor;
  EXPECT_EQ(test::packed_code(nvfp4, DType::kBF16), 0x45FCU) << "6 * 448 * 3 = 8064";
}

std::string words(const std::vector<std::uint64_t>& codes, DType dtype) {
  std::string bytes;
  for (const std::uint64_t code : codes) test::append_code(bytes, code, dtype);
  return bytes;
}

// Rows of 8 codes in two columns: the oracle's own reading of what a file holds.
TEST(DequantizePackedOracle, FindsTheCodesOfAnElement) {
  FileTensor gptq;
  gptq.key = "x";
  gptq.scales_key = "s";
  gptq.dtype = DType::kI32;
  gptq.shape = {1, 2, 8};
  gptq.block = {1, 1, 8};
  gptq.scales_shape = {1, 2};
  gptq.bytes = words({0x76543210, 0xFEDCBA98}, DType::kI32);
  gptq.scales_bytes = words({0x3F800000, 0x3F000000}, DType::kF32);
  gptq.packing.emplace();
  gptq.packing->decoding.code = CodeType::kU4;
  gptq.packing->decoding.per_element = 8;
  gptq.packing->decoding.zero = 1;
  gptq.packing->decoding.zeros_dim = 1;
  gptq.packing->zeros_key = "z";
  gptq.packing->zeros_shape = {1, 1};
  gptq.packing->zeros_bytes = words({0xFFFFFF21}, DType::kI32);
  // (0 ... 7) - 2, and (8 ... 15 - 3) / 2
  const std::vector<std::uint64_t> wanted = {0xC000, 0xBF80, 0x0000, 0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0,
                                             0x4020, 0x4040, 0x4060, 0x4080, 0x4090, 0x40A0, 0x40B0, 0x40C0};
  for (std::uint64_t i = 0; i < 16; ++i) EXPECT_EQ(gptq.code(i, DType::kBF16), wanted[i]) << i;
  gptq.packing->decoding.scale_order = {1, 0};
  gptq.packing->zeros_key = "";
  gptq.packing->decoding.zero = 0;
  EXPECT_EQ(gptq.code(2, DType::kBF16), 0x3F80U) << "2 * 0.5: the scales are the other way round";
  EXPECT_EQ(gptq.code(10, DType::kBF16), 0x4120U) << "10";
}

// One rank, rows of 256 codes: the oracle's own arithmetic against the engine's.
TEST_F(DequantizePacked, R48_EveryCodeOfEveryContainer) {
  constexpr std::uint64_t kRows = 12;
  std::mt19937_64 random(11);
  for (const test::Container of : test::kContainers) {
    const std::uint64_t elements = 256 / of.per_element();
    for (int i = 0; i < 30; ++i) {
      const std::string name = "t" + std::to_string(checkpoint_.tensors().size());
      FileTensor tensor = test::random_packed(random, name, of, {kRows, elements}, {1, elements, of.per_element()});
      for (std::size_t byte = 0; byte < tensor.bytes.size(); ++byte) tensor.bytes[byte] = static_cast<char>(byte % 256);
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
  EXPECT_EQ(load({}, &ledger).size(), test::kContainers.size() * 30 * kResults.size());
  EXPECT_TRUE(verify_ledger(ledger).differences.empty());
}

class DequantizePackedCuts : public test::DequantizeCutsFixture {
 protected:
  void make_tensors(std::uint64_t seed) override {
    std::mt19937_64 random(seed);
    for (const std::uint64_t rows : Dims{1, 3, 4, 5, 8, 10, 12, 16}) {
      for (const std::uint64_t cols : Dims{1, 2, 3, 4, 8, 12, 16}) {
        const DType result = kResults[random() % kResults.size()];
        const std::string name = "t" + std::to_string(checkpoint_.tensors().size());
        add(test::random_weight(random, name, {rows, cols}), result);
      }
    }
  }
};

TEST_F(DequantizePackedCuts, R48_OnUpTo16Ranks) { expect_right_on_ranks("t55.packed"); }
TEST_F(DequantizePackedCuts, R48_OnTwoAxes) { expect_right_on_two_axes("t55.packed"); }

class DequantizePackedFused : public test::DequantizeFusedFixture {
 protected:
  void SetUp() override { cols_ = 8; }

  void add(const std::string& name, const Dims& shape, const Dims& /*block*/) override {
    DequantizeFusedFixture::add(name, test::random_weight(random_, name, shape));
  }
};

TEST_F(DequantizePackedFused, R48_PartsAreDequantizedBeforeTheyAreMoved) { expect_right("gate.packed", "f1.packed"); }

// More than is read at once: pieces begin within rows, within blocks and within bytes.
TEST_F(DequantizePacked, R48_TensorsOfSeveralReads) {
  std::mt19937_64 random(7);
  struct Large {
    Dims shape;
    test::PackedKind kind;
    test::Container of;
  };
  const std::vector<Large> all = {{{1100, 3008}, test::PackedKind::kInOrder, {DType::kU8, CodeType::kF4}},
                                  {{1003, 4016}, test::PackedKind::kGptq, {DType::kI32, CodeType::kU4}},
                                  {{4000, 1003}, test::PackedKind::kAwq, {DType::kI32, CodeType::kU4}},
                                  {{100'001, 16}, test::PackedKind::kInOrder, {DType::kI32, CodeType::kU2}},
                                  {{3, 1002, 502}, test::PackedKind::kTurned, {DType::kU8, CodeType::kF4}}};
  for (const Large& large : all) {
    const std::string name = "t" + std::to_string(checkpoint_.tensors().size());
    auto made = test::random_weight_of(random, name, large.shape, {large.kind, large.of});
    checkpoint_.add(std::move(made.tensor));
    auto tensor = checkpoint_.model_tensor(name, DType::kBF16, made.weight);
    for (const char* kind : {"flat.", "shard0.", "shard1."}) {
      tensor.name = kind + name;
      add_model(tensor);
    }
  }
  write();
  std::string ledger;
  const Digests128 wanted = load({}, &ledger);
  EXPECT_TRUE(verify_ledger(ledger).differences.empty());
  layout::Layout layout;
  layout.mesh = layout::Mesh({{"x", 3}});
  layout.rules = {test::placed("flat.*", {test::flat({0})}), test::placed("shard0.*", {layout::Cut::shard({0}, 0)}),
                  test::placed("shard1.*", {layout::Cut::shard({0}, 1)})};
  EXPECT_EQ(load(layout), wanted);
}

}  // namespace
}  // namespace lading
