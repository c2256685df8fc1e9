#include "device/quantized/dequantize.h"

#include <gtest/gtest.h>

#include <cstring>

#include "device/quantized/quantized_for_tests.h"

namespace lading::device {
namespace {

constexpr std::byte kNotWritten{0x5A};

void expect_as_defined(const quantized::Made& made) {
  quantized::Bytes wanted(made.target_bytes, kNotWritten);
  quantized::Bytes found = wanted;
  quantized::move_by_definition(made, made.source.data(), wanted.data());
  dequantize_on_host(quantized::MadeMove(made, made.source.data(), found.data()).get());
  ASSERT_TRUE(found == wanted) << quantized::text(made);
}

TEST(DequantizeOnHost, AsDefined) {
  quantized::Random random(1);
  for (const DType from : quantized::kPayloadTypes) {
    for (const DType to : quantized::kResultTypes) {
      for (int i = 0; i < 60; ++i) {
        ASSERT_NO_FATAL_FAILURE(expect_as_defined(quantized::Maker(random, from, to).make(20000, random() % 4)));
      }
    }
  }
}

TEST(DequantizeOnHost, CodesAsDefined) {
  quantized::Random random(8);
  for (const CodeType code : quantized::kCodeTypes) {
    for (const DType to : quantized::kResultTypes) {
      for (int i = 0; i < 100; ++i) {
        ASSERT_NO_FATAL_FAILURE(expect_as_defined(quantized::Maker(random, code, to).make(10000, random() % 4)));
      }
    }
  }
}

// Longer than a line, and than a tile of lines; blocks end within both.
TEST(DequantizeOnHost, Transposes) {
  quantized::Random random(2);
  for (const auto& block : {Shape{128, 128}, Shape{1, 300}, Shape{200, 1}, Shape{7, 33}, Shape{200, 300}}) {
    quantized::Made made = quantized::make_whole(random, {200, 300}, block);
    made.run_elems = 1;
    made.loops = {{300, 1, 400}, {200, 300, 2}};
    made.strides_elems = {1, 300};
    expect_as_defined(made);
    std::swap(made.loops[0], made.loops[1]);
    std::swap(made.strides_elems[0], made.strides_elems[1]);
    expect_as_defined(made);
    // Pairs of elements stay together.
    made.run_elems = 2;
    made.loops = {{200, 300, 4}, {150, 2, 800}};
    made.strides_elems = {300, 2};
    expect_as_defined(made);
  }
}

// Each code of a byte is a move of its own. Blocks go along the codes, across them, and end within bytes.
TEST(DequantizeOnHost, CodesTransposed) {
  quantized::Random random(9);
  for (const CodeType code : quantized::kCodeTypes) {
    for (const auto& block : {Shape{1, 32}, Shape{128, 1}, Shape{7, 33}, Shape{200, 300}}) {
      quantized::Made made = quantized::make_whole(random, {200, 300}, block, code);
      const std::uint64_t in_byte = 8 / made.element_bits();
      made.run_elems = 1;
      made.loops = {{300 / in_byte, 1, 400 * in_byte}, {200, 300 / in_byte, 2}};
      made.strides_elems = {in_byte, 300};
      for (std::uint64_t place = 0; place < in_byte; ++place) {
        made.first_elem = place;
        made.first_code = static_cast<std::uint8_t>(place);
        ASSERT_NO_FATAL_FAILURE(expect_as_defined(made));
        std::swap(made.loops[0], made.loops[1]);
        std::swap(made.strides_elems[0], made.strides_elems[1]);
        ASSERT_NO_FATAL_FAILURE(expect_as_defined(made));
      }
    }
  }
}

// [in / 8, out, 8] to [out, in], where 8 codes stay together; and [in, out / 8, 8], where none do.
TEST(DequantizeOnHost, CodesOfIntegersTransposed) {
  quantized::Random random(10);
  constexpr std::uint64_t kIn = 192;
  constexpr std::uint64_t kOut = 320;
  for (const std::uint64_t rows : {1U, 4U, 24U}) {
    quantized::Made made = quantized::make_whole(random, {kIn / 8, kOut, 8}, {rows, 1, 8}, CodeType::kU4);
    made.scales.zeros.assign(quantized::block_count(made.scales.shape, made.scales.block), std::byte{5});
    made.run_elems = 8;
    made.loops = {{kOut, 4, 2 * kIn}, {kIn / 8, 4 * kOut, 16}};
    made.strides_elems = {8, 8 * kOut};
    ASSERT_NO_FATAL_FAILURE(expect_as_defined(made));
    made = quantized::make_whole(random, {kIn, kOut / 8, 8}, {rows, 1, 1}, CodeType::kU4);
    made.scales.zeros.assign(quantized::block_count(made.scales.shape, made.scales.block), std::byte{5});
    made.run_elems = 1;
    made.first_code = 1;
    made.first_elem = 1;
    made.loops = {{kIn, kOut / 2, 2}, {kOut / 8, 4, 16 * kIn}};
    made.strides_elems = {kOut, 8};
    ASSERT_NO_FATAL_FAILURE(expect_as_defined(made));
  }
}

// The buffer lacks what the tensor has between the rows.
TEST(DequantizeOnHost, RowsThatWereReadWithoutTheirGaps) {
  quantized::Random random(3);
  for (const std::uint64_t run : {1U, 20U, 40U, 96U}) {
    quantized::Made made = quantized::make_whole(random, {64, 256}, {16, 32});
    made.first_elem = 5 * 256 + 29;
    made.run_elems = run;
    made.loops = {{50, run, 2 * run}};
    made.strides_elems = {256};
    expect_as_defined(made);
  }
}

TEST(DequantizeOnHost, RunsGoOverRowsAndSlices) {
  quantized::Random random(4);
  quantized::Made made = quantized::make_whole(random, {5, 30, 41}, {2, 7, 16});
  made.first_elem = 1;
  made.run_elems -= 1;
  expect_as_defined(made);
}

TEST(DequantizeOnHost, NothingIsMovedByEmptyLoops) {
  quantized::Random random(5);
  quantized::Made made = quantized::make_whole(random, {4, 4}, {2, 2});
  made.run_elems = 4;
  made.loops = {{0, 4, 8}};
  made.strides_elems = {4};
  expect_as_defined(made);
  made.run_elems = 0;
  made.loops = {{4, 4, 8}};
  expect_as_defined(made);
}

std::uint64_t dequantized(std::uint8_t code, double scale, DType from, DType to) {
  const BlockScales scales = quantized::equal_scales({}, {}, 1, scale);
  const auto payload = static_cast<std::byte>(code);
  std::uint64_t bits = 0;
  Dequantizer(scales, from, to).run({&payload, 1}, 0, reinterpret_cast<std::byte*>(&bits));
  return bits;
}

// Written down by hand.
TEST(Dequantizer, NumbersThatAreNone) {
  using enum DType;
  EXPECT_EQ(dequantized(0x7C, 0, kF8E5M2, kBF16), 0x7FC0U);  // infinity * 0, whatever the signs
  EXPECT_EQ(dequantized(0xFC, 0, kF8E5M2, kBF16), 0x7FC0U);
  EXPECT_EQ(dequantized(0xFC, -0.0, kF8E5M2, kF32), 0x7FC00000U);
  EXPECT_EQ(dequantized(0x7C, 0, kF8E5M2, kF64), 0x7FF8000000000000U);
  EXPECT_EQ(dequantized(0xFC, 3, kF8E5M2, kF16), 0xFC00U);
  EXPECT_EQ(dequantized(0xFC, -3, kF8E5M2, kF16), 0x7C00U);
  EXPECT_EQ(dequantized(0xFF, -3, kF8E4M3, kBF16), 0xFFF0U);  // a NaN keeps its sign and payload
  EXPECT_EQ(dequantized(0x80, 3, kF8E4M3Fnuz, kBF16), 0x7FC0U);
  EXPECT_EQ(dequantized(0x80, 3, kF8E4M3, kBF16), 0x8000U);  // -0
  EXPECT_EQ(dequantized(0x00, -3, kF8E4M3, kBF16), 0x8000U);
  EXPECT_EQ(dequantized(0x7E, 0x1p126, kF8E4M3, kBF16), 0x7F80U);  // overflow
}

struct CodeCase {
  CodeType code = CodeType::kF4;
  std::uint8_t bits = 0;
  std::uint64_t zero = 0;
  double scale = 1;
  double tensor_scale = 1;
  TensorScale is = TensorScale::kFactor;
};

std::uint64_t dequantized(const CodeCase& one, DType to) {
  BlockScales scales = quantized::equal_scales({}, {}, 1, one.scale);
  scales.code = one.code;
  scales.zero = one.zero;
  scales.tensor_scale = one.tensor_scale;
  scales.tensor_scale_is = one.is;
  const auto byte = static_cast<std::byte>(one.bits);
  std::uint64_t bits = 0;
  Dequantizer(scales, DType::kU8, to).run({&byte, 1}, 0, reinterpret_cast<std::byte*>(&bits));
  return bits;
}

// Written down by hand.
TEST(Dequantizer, Codes) {
  using enum CodeType;
  EXPECT_EQ(dequantized({kF4, 7}, DType::kBF16), 0x40C0U);         // 6
  EXPECT_EQ(dequantized({kF4, 0xB1}, DType::kBF16), 0x3F00U);      // 0.5; the rest of the byte is another code
  EXPECT_EQ(dequantized({kF4, 8}, DType::kBF16), 0x8000U);         // -0
  EXPECT_EQ(dequantized({kF4, 8, 0, -1}, DType::kBF16), 0x0000U);  // 0
  EXPECT_EQ(dequantized({kF4, 0xD, 0, 0x1p-126}, DType::kBF16), 0x8140U);
  EXPECT_EQ(dequantized({kU4, 8, 8}, DType::kF32), 0U);  // 8 - 8
  EXPECT_EQ(dequantized({kU4, 8, 8, -1}, DType::kF32), 0x80000000U);
  EXPECT_EQ(dequantized({kU4, 0, 8}, DType::kF32), 0xC1000000U);  // -8
  EXPECT_EQ(dequantized({kU2, 3}, DType::kF16), 0x4200U);
  EXPECT_EQ(dequantized({kU8, 255, 128}, DType::kBF16), 0x42FEU);  // 127
  EXPECT_EQ(dequantized({kI8, 255}, DType::kBF16), 0xBF80U);       // -1
  EXPECT_EQ(dequantized({kI8, 128}, DType::kBF16), 0xC300U);       // -128
}

// 3 * (257 / 768) and 7 * (257 / 1792) are 257 / 256, halfway between two BF16: the even one, though neither quotient
// is a number of F64.
TEST(Dequantizer, MidpointsAreMidpointsAfterADivision) {
  const auto divided = [](CodeType code, std::uint8_t bits, double scale, double by) {
    return dequantized({code, bits, 0, scale, by, TensorScale::kDivisor}, DType::kBF16);
  };
  EXPECT_EQ(divided(CodeType::kF4, 5, 257, 768), 0x3F80U);
  EXPECT_EQ(divided(CodeType::kF4, 5, 259, 768), 0x3F82U);
  EXPECT_EQ(divided(CodeType::kF4, 0xD, 259, 768), 0xBF82U);
  EXPECT_EQ(divided(CodeType::kU4, 7, 257, 1792), 0x3F80U);
  EXPECT_EQ(divided(CodeType::kU4, 7, 259, 1792), 0x3F82U);
  EXPECT_EQ(divided(CodeType::kU4, 13, 257, 13 * 256), 0x3F80U);
  EXPECT_EQ(divided(CodeType::kU4, 13, 259, 13 * 256), 0x3F82U);
}

// Products of three numbers, nearer to a midpoint than F64 can say: 421 * 2^54 + 36 and 20762383 * 2^38 - 288.
TEST(Dequantizer, ProductsThatF64CannotHoldAreRoundedOnce) {
  EXPECT_EQ(dequantized({CodeType::kU8, 0, 53645, 13843630, 10212278}, DType::kBF16), 0xDED3U);
  EXPECT_EQ(dequantized({CodeType::kU8, 0, 45763, 14463536, 8622398}, DType::kF32), 0xDE9E6787U);
}

// Where a product is closer to a midpoint of two BF16 than an F32 can say, a second rounding shows.
TEST(Dequantizer, RoundsOnce) {
  EXPECT_EQ(dequantized(0x39, 1.0, DType::kF8E4M3, DType::kBF16), 0x3F90U);
  quantized::Random random(6);
  reference::Nearest nearest(reference::layout_of(DType::kBF16));
  int once = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto code = static_cast<std::uint8_t>(0x38 + random() % 8);
    // Products close to a midpoint.
    const double value = 1 + (code - 0x38) / 8.0;
    const double midpoint = 1 + (2.0 * static_cast<double>(random() % 128) + 1) / 256;
    const double scale = double{static_cast<float>(midpoint / value)};
    const double product = value * scale;
    const std::uint64_t wanted = reference::write(nearest, {reference::Number::Kind::kFinite, 0, product, 0});
    const std::uint64_t twice =
        reference::write(nearest, {reference::Number::Kind::kFinite, 0, double{static_cast<float>(product)}, 0});
    ASSERT_EQ(dequantized(code, scale, DType::kF8E4M3, DType::kBF16), wanted) << int{code} << " * " << scale;
    if (wanted != twice) ++once;
  }
  EXPECT_GT(once, 100);
}

// Calls that go on from each other, and such that do not, give what one call gives.
TEST(Dequantizer, AnyPiecesInAnyOrder) {
  quantized::Random random(7);
  for (const auto& block : {Shape{128, 128}, Shape{1, 1}, Shape{3, 50}, Shape{1, 700}, Shape{300, 1}}) {
    quantized::Made made = quantized::make_whole(random, {300, 700}, block);
    made.to = DType::kF32;
    const std::uint64_t elems = made.source.size();
    quantized::Bytes wanted(4 * elems);
    quantized::Bytes found(4 * elems);
    made.run_elems = elems;
    quantized::move_by_definition(made, made.source.data(), wanted.data());
    std::vector<ByteRange> pieces;
    for (std::uint64_t begin = 0; begin < elems;) {
      const std::uint64_t end = std::min(elems, begin + 1 + random() % 3000);
      pieces.push_back({begin, end});
      begin = end;
    }
    std::shuffle(pieces.begin() + static_cast<std::ptrdiff_t>(pieces.size() / 2), pieces.end(), random);
    Dequantizer dequantizer(made.scales, made.from, made.to);
    for (const ByteRange& piece : pieces) {
      dequantizer.run({made.source.data(), piece.size_bytes(), piece.begin}, piece.begin,
                      found.data() + 4 * piece.begin);
    }
    EXPECT_TRUE(found == wanted) << block.text();
  }
}

}  // namespace
}  // namespace lading::device
