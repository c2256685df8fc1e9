// For tests: quantized weights as the libraries that make them write them to files. Codes, scales and zero points are
// drawn as plain matrices, and packed as each library packs them; what a weight must be follows from the matrices.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "api/tests/dequantize_packed_for_tests.h"
#include "api/tests/dequantize_world_for_tests.h"

namespace lading::test {

// A matrix of whole numbers, row by row.
struct Matrix {
  std::uint64_t rows = 0;
  std::uint64_t cols = 0;
  std::vector<std::uint64_t> at;

  [[nodiscard]] std::uint64_t operator()(std::uint64_t row, std::uint64_t col) const { return at[row * cols + col]; }
  std::uint64_t& operator()(std::uint64_t row, std::uint64_t col) { return at[row * cols + col]; }
};

inline Matrix matrix(std::uint64_t rows, std::uint64_t cols, const std::function<std::uint64_t()>& draw) {
  Matrix made{rows, cols, {}};
  for (std::uint64_t i = 0; i < rows * cols; ++i) made.at.push_back(draw());
  return made;
}

inline RawKey raw_key(std::string key, DType dtype, Dims shape, const std::vector<std::uint64_t>& codes) {
  RawKey made{std::move(key), dtype, std::move(shape), {}};
  for (const std::uint64_t code : codes) append_code(made.bytes, code, dtype);
  return made;
}

// Several columns of codes in one, the first in the lowest bits; the last ones may lack some.
inline Matrix pack_columns(const Matrix& codes, unsigned width, unsigned in_element) {
  Matrix made{codes.rows, (codes.cols + in_element - 1) / in_element, {}};
  made.at.resize(made.rows * made.cols);
  for (std::uint64_t row = 0; row < codes.rows; ++row) {
    for (std::uint64_t col = 0; col < codes.cols; ++col)
      made(row, col / in_element) |= codes(row, col) << (col % in_element * width);
  }
  return made;
}

inline Matrix transposed(const Matrix& of) {
  Matrix made{of.cols, of.rows, std::vector<std::uint64_t>(of.at.size())};
  for (std::uint64_t row = 0; row < of.rows; ++row) {
    for (std::uint64_t col = 0; col < of.cols; ++col) made(col, row) = of(row, col);
  }
  return made;
}

inline RawKey raw_matrix(std::string key, DType dtype, const Matrix& of) {
  return raw_key(std::move(key), dtype, {of.rows, of.cols}, of.at);
}

// What a scheme may choose.
struct SchemeSpec {
  std::string module;
  std::uint64_t out = 0;
  std::uint64_t in = 0;
  unsigned width = 4;       // bits of a code
  std::uint64_t group = 0;  // 0: one scale for a row
  DType scales = DType::kF16;
  std::optional<DType> product = {};
  std::vector<std::uint64_t> order = {};  // by column: its group; empty: they count up

  [[nodiscard]] std::uint64_t groups() const { return group == 0 ? 1 : blocks_of(in, group); }
  [[nodiscard]] std::uint64_t group_of(std::uint64_t column) const {
    if (!order.empty()) return order[column];
    return group == 0 ? 0 : column / group;
  }
};

// A quantizer that takes columns by their activations: groups have the sizes that they have otherwise, or, one time in
// three, any.
inline SchemeSpec in_activation_order(std::mt19937_64& random, SchemeSpec spec) {
  std::vector<std::uint64_t> order;
  const bool is_ragged = random() % 3 == 0;
  for (std::uint64_t column = 0; column < spec.in; ++column)
    order.push_back(is_ragged ? random() % spec.groups() : spec.group_of(column));
  std::shuffle(order.begin(), order.end(), random);
  spec.order = std::move(order);
  return spec;
}

enum class Zeros : std::uint8_t { kNone, kStored };

inline CodeType unsigned_code_of(unsigned width) {
  if (width == 2) return CodeType::kU2;
  return width == 4 ? CodeType::kU4 : CodeType::kU8;
}

// The matrices of a weight [out, in]: codes, and scales and zero points [out, groups].
struct Drawn {
  SchemeSpec spec;
  Matrix codes;
  Matrix scales;
  Matrix zeros;

  Drawn(std::mt19937_64& random, const SchemeSpec& of)
      : spec(of),
        codes(matrix(of.out, of.in, [&] { return random() & ones(static_cast<int>(of.width)); })),
        scales(matrix(of.out, of.groups(), [&] { return random_scale(random, of.scales); })),
        zeros(matrix(of.out, of.groups(), [&] { return random() & ones(static_cast<int>(of.width)); })) {}

  [[nodiscard]] ExactNumber scale(std::uint64_t row, std::uint64_t column) const {
    return value_of(scales(row, spec.group_of(column)), format_of(spec.scales));
  }
  [[nodiscard]] std::int64_t zero(std::uint64_t row, std::uint64_t column) const {
    return static_cast<std::int64_t>(zeros(row, spec.group_of(column)));
  }

  // A weight [out, in] of these: (code - what is subtracted) * scale.
  [[nodiscard]] FileTensor weight(CodeType type,
                                  const std::function<std::int64_t(std::uint64_t, std::uint64_t)>& minus) const {
    FileTensor made;
    made.key = spec.module + ".weight";
    made.shape = {spec.out, spec.in};
    made.scales_dtype = spec.scales;
    made.product = spec.product;
    for (std::uint64_t row = 0; row < spec.out; ++row) {
      for (std::uint64_t col = 0; col < spec.in; ++col) {
        PackedElement element;
        element.code = number_of_code(codes(row, col), type);
        element.zero = minus(row, col);
        element.scale = scale(row, col);
        made.elements.push_back(element);
      }
    }
    return made;
  }
};

// compressed-tensors, "pack-quantized": signed integers, to which half of their range is added, eight of four bits in
// an I32 along a row. Zero points of "asymmetric" too, but down a column.
inline FileTensor pack_quantized(std::mt19937_64& random, const SchemeSpec& spec, Zeros with) {
  const Drawn drawn(random, spec);
  const unsigned in_element = 32 / spec.width;
  const std::int64_t half = std::int64_t{1} << (spec.width - 1);
  FileTensor made = drawn.weight(unsigned_code_of(spec.width), [&](std::uint64_t row, std::uint64_t col) {
    return with == Zeros::kStored ? drawn.zero(row, col) : half;
  });
  made.raw = {raw_matrix(made.key + "_packed", DType::kI32, pack_columns(drawn.codes, spec.width, in_element)),
              raw_matrix(made.key + "_scale", spec.scales, drawn.scales),
              raw_key(made.key + "_shape", DType::kI64, {2}, {spec.out, spec.in})};
  if (!spec.order.empty()) made.raw.push_back(raw_key(made.key + "_g_idx", DType::kI32, {spec.in}, spec.order));
  if (with == Zeros::kNone) return made;
  const Matrix zeros = transposed(pack_columns(transposed(drawn.zeros), spec.width, in_element));
  made.raw.push_back(raw_matrix(made.key + "_zero_point", DType::kI32, zeros));
  return made;
}

// compressed-tensors, "int-quantized": an I8 for each element.
inline FileTensor int_quantized(std::mt19937_64& random, SchemeSpec spec, Zeros with) {
  spec.width = 8;
  const Drawn drawn(random, spec);
  FileTensor made = drawn.weight(CodeType::kI8, [&](std::uint64_t row, std::uint64_t col) {
    const std::int64_t zero = drawn.zero(row, col);
    if (with == Zeros::kNone) return std::int64_t{0};
    return zero < 128 ? zero : zero - 256;
  });
  made.raw = {raw_matrix(made.key, DType::kI8, drawn.codes),
              raw_matrix(made.key + "_scale", spec.scales, drawn.scales)};
  if (with == Zeros::kStored) made.raw.push_back(raw_matrix(made.key + "_zero_point", DType::kI8, drawn.zeros));
  return made;
}

// NVFP4: two codes in a byte, groups of 16 with scales in F8_E4M3, and one scale for the tensor: compressed-tensors
// divides by it, ModelOpt multiplies.
inline FileTensor nvfp4(std::mt19937_64& random, SchemeSpec spec, TensorScale is) {
  spec.width = 4;
  spec.group = 16;
  spec.scales = DType::kF8E4M3;
  const Drawn drawn(random, spec);
  FileTensor made = drawn.weight(CodeType::kF4, [](std::uint64_t, std::uint64_t) { return 0; });
  const std::uint64_t tensor_scale = random_tensor_scale(random);
  for (PackedElement& element : made.elements) {
    element.tensor_scale = value_of(tensor_scale, format_of(DType::kF32));
    element.tensor_scale_is = is;
  }
  const Matrix packed = pack_columns(drawn.codes, 4, 2);
  const bool is_divisor = is == TensorScale::kDivisor;
  made.raw = {raw_matrix(is_divisor ? made.key + "_packed" : made.key, DType::kU8, packed),
              raw_matrix(made.key + "_scale", spec.scales, drawn.scales),
              is_divisor ? raw_key(made.key + "_global_scale", DType::kF32, {1}, {tensor_scale})
                         : raw_key(made.key + "_scale_2", DType::kF32, {}, {tensor_scale})};
  return made;
}

// compressed-tensors, "mxfp4-pack-quantized".
inline FileTensor mxfp4_packed(std::mt19937_64& random, SchemeSpec spec) {
  spec.width = 4;
  spec.group = 32;
  spec.scales = DType::kF8E8M0;
  const Drawn drawn(random, spec);
  FileTensor made = drawn.weight(CodeType::kF4, [](std::uint64_t, std::uint64_t) { return 0; });
  made.raw = {raw_matrix(made.key + "_packed", DType::kU8, pack_columns(drawn.codes, 4, 2)),
              raw_matrix(made.key + "_scale", DType::kU8, drawn.scales)};
  return made;
}

// MXFP4 of gpt-oss: 32 codes in 16 bytes. Experts [experts, in, out] are stored as [experts, out, in / 32, 16].
// experts = 0: a matrix [out, in], stored as [out, in / 32, 16].
inline FileTensor mxfp4_blocks(std::mt19937_64& random, SchemeSpec spec, std::uint64_t experts) {
  spec.width = 4;
  spec.group = 32;
  spec.scales = DType::kF8E8M0;
  const std::uint64_t out = spec.out;
  spec.out *= std::max<std::uint64_t>(1, experts);
  const Drawn drawn(random, spec);
  const FileTensor rows = drawn.weight(CodeType::kF4, [](std::uint64_t, std::uint64_t) { return 0; });
  FileTensor made = rows;
  made.key = spec.module;
  Dims blocks{out, spec.groups(), 16};
  if (experts > 0) {
    made.shape = {experts, spec.in, out};
    for (std::uint64_t i = 0; i < made.elements.size(); ++i) {
      const std::uint64_t row = i / (out * spec.in) * out + i % out;
      made.elements[i] = rows.elements[row * spec.in + i / out % spec.in];
    }
    blocks.insert(blocks.begin(), experts);
  }
  const Dims scales(blocks.begin(), blocks.end() - 1);
  made.raw = {raw_key(made.key + "_blocks", DType::kU8, blocks, pack_columns(drawn.codes, 4, 2).at),
              raw_key(made.key + "_scales", DType::kU8, scales, drawn.scales.at)};
  return made;
}

// GPTQ: everything is stored transposed. Codes are packed along the columns of a weight's transpose, zero points along
// its rows, less one in the first format.
inline FileTensor gptq(std::mt19937_64& random, const SchemeSpec& spec, std::int64_t less) {
  const Drawn drawn(random, spec);
  const unsigned in_element = 32 / spec.width;
  FileTensor made = drawn.weight(unsigned_code_of(spec.width),
                                 [&](std::uint64_t row, std::uint64_t col) { return drawn.zero(row, col) + less; });
  std::vector<std::uint64_t> order;
  for (std::uint64_t col = 0; col < spec.in; ++col) order.push_back(spec.group_of(col));
  const std::string& module = spec.module;
  made.raw = {
      raw_matrix(module + ".qweight", DType::kI32, transposed(pack_columns(drawn.codes, spec.width, in_element))),
      raw_matrix(module + ".scales", spec.scales, transposed(drawn.scales)),
      raw_matrix(module + ".qzeros", DType::kI32, pack_columns(transposed(drawn.zeros), spec.width, in_element)),
      raw_key(module + ".g_idx", DType::kI32, {spec.in}, order)};
  return made;
}

// AWQ's kernels want the columns 0, 2, 4, 6, 1, 3, 5, 7 of eight in the places 0 to 7 of an element.
inline Matrix in_awq_order(const Matrix& of) {
  constexpr std::array<std::uint64_t, 8> kOrderMap = {0, 2, 4, 6, 1, 3, 5, 7};
  Matrix made = of;
  for (std::uint64_t row = 0; row < of.rows; ++row) {
    for (std::uint64_t col = 0; col < of.cols; ++col) made(row, col) = of(row, col / 8 * 8 + kOrderMap[col % 8]);
  }
  return made;
}

// AWQ, version "gemm": stored transposed, packed along the rows of the transpose.
inline FileTensor awq(std::mt19937_64& random, SchemeSpec spec) {
  spec.width = 4;
  const Drawn drawn(random, spec);
  FileTensor made =
      drawn.weight(CodeType::kU4, [&](std::uint64_t row, std::uint64_t col) { return drawn.zero(row, col); });
  const std::string& module = spec.module;
  made.raw = {raw_matrix(module + ".qweight", DType::kI32, pack_columns(in_awq_order(transposed(drawn.codes)), 4, 8)),
              raw_matrix(module + ".scales", spec.scales, transposed(drawn.scales)),
              raw_matrix(module + ".qzeros", DType::kI32, pack_columns(in_awq_order(transposed(drawn.zeros)), 4, 8))};
  return made;
}

}  // namespace lading::test
