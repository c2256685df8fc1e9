// For tests: random tensors of packed codes, and the expressions that make weights of them, of every kind that a scheme
// uses and some that none does.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "api/tests/dequantize_world_for_tests.h"

namespace lading::test {

struct Container {
  DType dtype = DType::kU8;
  CodeType code = CodeType::kF4;

  [[nodiscard]] std::uint64_t per_element() const { return lading::bits(dtype) / lading::bits(code); }
};

constexpr std::array<Container, 13> kContainers = {{{DType::kU8, CodeType::kF4},
                                                    {DType::kI32, CodeType::kU4},
                                                    {DType::kI32, CodeType::kU8},
                                                    {DType::kI32, CodeType::kU2},
                                                    {DType::kI8, CodeType::kI8},
                                                    {DType::kU8, CodeType::kU4},
                                                    {DType::kU8, CodeType::kU2},
                                                    {DType::kU8, CodeType::kU8},
                                                    {DType::kI32, CodeType::kF4},
                                                    {DType::kI32, CodeType::kI8},
                                                    {DType::kU16, CodeType::kU4},
                                                    {DType::kU32, CodeType::kU4},
                                                    {DType::kI8, CodeType::kU4}}};

// A dtype of stored scales, and what their bits are, if not that.
struct ScaleKind {
  DType dtype = DType::kF32;
  std::optional<DType> are = {};

  [[nodiscard]] DType values() const { return are.value_or(dtype); }
};

constexpr std::array<ScaleKind, 6> kScaleKinds = {
    {{DType::kF32}, {DType::kF16}, {DType::kBF16}, {DType::kF8E8M0}, {DType::kU8, DType::kF8E8M0}, {DType::kF8E4M3}}};

// The grid, whose last two dims are one dim of the scales; dims of 1 left out or put in.
inline Dims random_scales_shape(std::mt19937_64& random, Dims grid) {
  const std::uint64_t codes = grid.back();
  grid.pop_back();
  grid.back() *= codes;
  Dims shape;
  for (const std::uint64_t dim : grid) {
    if (dim != 1 || random() % 2 == 0) shape.push_back(dim);
  }
  if (random() % 8 == 0) shape.insert(shape.begin(), 1);
  return shape;
}

inline std::string random_bytes(std::mt19937_64& random, std::uint64_t count) {
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random() & 0xFF);
  return bytes;
}

inline std::uint64_t random_tensor_scale(std::mt19937_64& random) {
  for (;;) {
    const std::uint64_t scale = random_scale(random, DType::kF32);
    if ((scale & 0x7FFFFFFF) != 0) return scale;
  }
}

inline Packing random_packing(std::mt19937_64& random, Container of, const FileTensor& tensor, const Dims& grid) {
  Packing made;
  made.decoding.code = of.code;
  made.decoding.per_element = of.per_element();
  constexpr std::array<std::uint64_t, 6> kZeros = {0, 0, 1, 8, 128, 65535};
  if (of.code != CodeType::kF4) made.decoding.zero = kZeros[random() % kZeros.size()];
  if (of.code != CodeType::kF4 && !tensor.scales_shape.empty() && random() % 2 == 0) {
    made.zeros_key = tensor.key + "_zeros";
    made.decoding.zeros_dim = random() % tensor.scales_shape.size();
    made.zeros_shape = tensor.scales_shape;
    std::uint64_t& packed = made.zeros_shape[made.decoding.zeros_dim];
    packed = blocks_of(packed, of.per_element());
    made.zeros_bytes = random_bytes(random, count_of(made.zeros_shape) * (bits(of.dtype) / 8));
  }
  if (random() % 3 == 0) {
    made.tensor_scale_key = tensor.key + "_global";
    made.tensor_scale = random_tensor_scale(random);
    made.decoding.tensor_scale = random() % 2 == 0 ? TensorScale::kFactor : TensorScale::kDivisor;
  }
  const std::uint64_t last = grid.back();
  if (last > 1 && random() % 2 == 0) {
    std::uint64_t run = 1 + random() % last;
    while (last % run != 0) --run;
    made.decoding.scale_order.resize(run);
    std::iota(made.decoding.scale_order.begin(), made.decoding.scale_order.end(), std::size_t{0});
    std::shuffle(made.decoding.scale_order.begin(), made.decoding.scale_order.end(), random);
  }
  return made;
}

// `key_shape` is that of the stored elements; `block` has one dim more.
inline FileTensor random_packed(std::mt19937_64& random, const std::string& name, Container of, Dims key_shape,
                                Dims block) {
  FileTensor made;
  made.key = name + ".packed";
  made.scales_key = name + ".packed_scale";
  made.dtype = of.dtype;
  const ScaleKind scales = kScaleKinds[random() % kScaleKinds.size()];
  made.scales_dtype = scales.dtype;
  made.scale_dtype = scales.are;
  made.bytes = random_bytes(random, count_of(key_shape) * (bits(of.dtype) / 8));
  made.shape = std::move(key_shape);
  made.shape.push_back(of.per_element());
  made.block = std::move(block);
  Dims grid;
  for (std::size_t d = 0; d < made.shape.size(); ++d) grid.push_back(blocks_of(made.shape[d], made.block[d]));
  made.scales_shape = random_scales_shape(random, grid);
  for (std::uint64_t i = count_of(grid); i > 0; --i)
    append_code(made.scales_bytes, random_scale(random, scales.values()), scales.dtype);
  made.packing = random_packing(random, of, made, grid);
  made.product = random_product(random);
  return made;
}

// A tensor in a file, and the weight that is made of it.
struct PackedWeight {
  FileTensor tensor;
  mapping::Expression weight;
};

// Each dim whole, or in blocks of a few; the codes of an element mostly together.
inline Dims random_packed_block(std::mt19937_64& random, const Dims& key_shape, std::uint64_t per_element) {
  Dims block;
  for (const std::uint64_t extent : key_shape) {
    const std::uint64_t choice = random() % 6;
    block.push_back(choice == 0 ? std::max<std::uint64_t>(extent, 1) : std::max<std::uint64_t>(choice - 1, 1));
  }
  block.push_back(random() % 4 != 0 ? per_element : 1 + random() % per_element);
  return block;
}

enum class PackedKind : std::uint8_t {
  kInOrder,  // the last dim is packed, as in NVFP4 and compressed-tensors
  kGptq,     // the first one of the transpose
  kAwq,      // the last one of the transpose, its codes in another order
  kTurned,   // the last one of the transpose, as MXFP4 of experts
};

inline bool fits(PackedKind kind, Container of, const Dims& shape) {
  const std::uint64_t per_element = of.per_element();
  if (kind == PackedKind::kInOrder) return shape.back() % per_element == 0;
  if (kind == PackedKind::kTurned) return shape[shape.size() - 2] % per_element == 0;
  if (shape.size() != 2) return false;
  if (kind == PackedKind::kGptq) return shape[1] % per_element == 0;
  return per_element % 2 == 0 && shape[0] % per_element == 0;
}

inline PackedWeight random_weight_of(std::mt19937_64& random, const std::string& name, Dims shape,
                                     std::pair<PackedKind, Container> as) {
  using mapping::Expression;
  const auto [kind, of] = as;
  const std::uint64_t per_element = of.per_element();
  Dims turned = shape;  // the last two dims swapped
  std::swap(turned.back(), turned[turned.size() - 2]);
  Dims key_shape = kind == PackedKind::kInOrder ? shape : turned;
  (kind == PackedKind::kGptq ? key_shape.front() : key_shape.back()) /= per_element;
  PackedWeight made;
  made.tensor = random_packed(random, name, of, key_shape, random_packed_block(random, key_shape, per_element));
  Expression leaf = Checkpoint::leaf(made.tensor);
  switch (kind) {
    case PackedKind::kInOrder: made.weight = Expression::reshape(std::move(leaf), Shape(shape)); break;
    case PackedKind::kGptq:
      made.weight = Expression::reshape(Expression::permute(std::move(leaf), {1, 0, 2}), Shape(shape));
      break;
    case PackedKind::kAwq:
      leaf = Expression::rearrange(std::move(leaf), 2, {2, per_element / 2}, {1, 0});
      made.weight = Expression::permute(Expression::reshape(std::move(leaf), Shape(turned)), {1, 0});
      break;
    case PackedKind::kTurned: {
      const auto order = shape.size() == 2 ? std::vector<std::size_t>{1, 0} : std::vector<std::size_t>{0, 2, 1};
      made.weight = Expression::permute(Expression::reshape(std::move(leaf), Shape(turned)), order);
      break;
    }
  }
  return made;
}

// Of two or three dims; with several codes in an element, where they can be.
inline PackedWeight random_weight(std::mt19937_64& random, const std::string& name, const Dims& shape) {
  std::vector<std::pair<PackedKind, Container>> ways;
  for (const Container of : kContainers) {
    for (const PackedKind kind : {PackedKind::kInOrder, PackedKind::kGptq, PackedKind::kAwq, PackedKind::kTurned}) {
      if (fits(kind, of, shape)) ways.emplace_back(kind, of);
    }
  }
  for (int tries = 0;; ++tries) {
    const auto& way = ways[random() % ways.size()];
    if (way.second.per_element() > 1 || tries > 4) return random_weight_of(random, name, shape, way);
  }
}

}  // namespace lading::test
