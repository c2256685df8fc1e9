// The keys of a weight [out, in] as a scheme of packed codes names them, mostly of shapes that fit, and what
// config.json must say for them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/catalog.h"
#include "fuzz_input.h"
#include "lading/dtype.h"
#include "lading/shape.h"

namespace lading::fuzz {

struct PackedKey {
  std::string name;
  DType dtype = DType::kI32;
  Shape shape;
};

struct PackedKeys {
  std::string name;  ///< of the weight in a checkpoint that is not quantized
  Shape shape;
  std::vector<PackedKey> keys;  ///< the payload first
  std::string shape_key;        ///< that says the shape; "": none
  checkpoint::Quantization said;
};

class PackedKeysMaker {
 public:
  PackedKeysMaker(Input& input, std::string module) : input_(input), module_(std::move(module)) {
    constexpr std::array<std::uint64_t, 8> kExtents = {0, 1, 8, 16, 24, 32, 64, 72};
    out_ = input_.any(kExtents);
    in_ = input_.any(kExtents);
  }

  PackedKeys make() {
    made_.name = module_ + ".weight";
    made_.shape = Shape{out_, in_};
    constexpr std::array<std::uint64_t, 8> kBits = {4, 4, 4, 8, 8, 2, 3, 64};
    constexpr std::array<std::int64_t, 8> kGroups = {16, 32, 8, -1, 24, 1, 0, 128};
    made_.said.bits = input_.any(kBits);
    made_.said.group_size = input_.any(kGroups);
    if (input_.once_in(16)) made_.said.bits.reset();
    if (input_.once_in(16)) made_.said.group_size.reset();
    switch (input_.below(7)) {
      case 0: gptq(); break;
      case 1: awq(); break;
      case 2: integers(); break;
      case 3: nvfp4(); break;
      case 4: nvfp4_of_modelopt(); break;
      case 5: mxfp4(); break;
      default: int8(); break;
    }
    for (PackedKey& key : made_.keys) spoil(key);
    if (input_.once_in(12))
      made_.keys.erase(made_.keys.begin() + static_cast<std::ptrdiff_t>(input_.below(made_.keys.size())));
    return std::move(made_);
  }

 private:
  static std::uint64_t parts(std::uint64_t extent, std::uint64_t size) {
    return size == 0 ? 0 : extent / size + (extent % size == 0 ? 0 : 1);
  }
  [[nodiscard]] std::uint64_t per_element() const {
    const std::uint64_t bits = made_.said.bits.value_or(4);
    return bits == 0 || bits > 32 ? 1 : 32 / bits;
  }
  [[nodiscard]] std::uint64_t groups() const {
    const std::int64_t size = made_.said.group_size.value_or(-1);
    return size <= 0 ? 1 : parts(in_, static_cast<std::uint64_t>(size));
  }
  DType scales() {
    constexpr std::array kScales = {DType::kF16, DType::kBF16, DType::kF32};
    return input_.any(kScales);
  }
  void add(std::string_view name, DType dtype, Shape shape) {
    made_.keys.push_back({module_ + "." + std::string(name), dtype, std::move(shape)});
  }

  void gptq() {
    made_.said.method = "gptq";
    made_.said.format = input_.once_in(3) ? "gptq_v2" : "gptq";
    made_.said.has_order = input_.once_in(8);
    add("qweight", DType::kI32, {parts(in_, per_element()), out_});
    add("scales", scales(), {groups(), out_});
    add("qzeros", DType::kI32, {groups(), parts(out_, per_element())});
    if (input_.once_in(2)) add("g_idx", DType::kI32, {in_});
  }
  void awq() {
    made_.said.method = "awq";
    made_.said.format = "gemm";
    if (!input_.once_in(8)) made_.said.bits = 4;
    add("qweight", DType::kI32, {in_, parts(out_, 8)});
    add("scales", scales(), {groups(), out_});
    add("qzeros", DType::kI32, {groups(), parts(out_, 8)});
  }
  void integers() {
    made_.said.method = "compressed-tensors";
    made_.said.format = "pack-quantized";
    add("weight_packed", DType::kI32, {out_, parts(in_, per_element())});
    add("weight_scale", scales(), {out_, groups()});
    if (input_.once_in(2)) add("weight_zero_point", DType::kI32, {parts(out_, per_element()), groups()});
    if (input_.once_in(3)) add("weight_g_idx", DType::kI32, {in_});
    if (input_.once_in(8)) made_.said.has_order = input_.once_in(2);
    add("weight_shape", DType::kI64, {2});
    made_.shape_key = module_ + ".weight_shape";
  }
  void nvfp4() {
    made_.said.method = "compressed-tensors";
    made_.said.format = "nvfp4-pack-quantized";
    add("weight_packed", DType::kU8, {out_, parts(in_, 2)});
    add("weight_scale", DType::kF8E4M3, {out_, parts(in_, 16)});
    add("weight_global_scale", DType::kF32, {1});
  }
  void nvfp4_of_modelopt() {
    made_.said.method = "modelopt";
    add("weight", DType::kU8, {out_, parts(in_, 2)});
    add("weight_scale", DType::kF8E4M3, {out_, parts(in_, 16)});
    add("weight_scale_2", DType::kF32, {});
  }
  void mxfp4() {
    made_.said.method = "mxfp4";
    made_.name = module_ + ".up";
    made_.shape = Shape{2, in_, out_};
    add("up_blocks", DType::kU8, {2, out_, parts(in_, 32), 16});
    add("up_scales", DType::kU8, {2, out_, parts(in_, 32)});
  }
  void int8() {
    made_.said.method = "compressed-tensors";
    made_.said.format = "int-quantized";
    add("weight", DType::kI8, {out_, in_});
    add("weight_scale", scales(), {out_, groups()});
    if (input_.once_in(2)) add("weight_zero_point", DType::kI8, {out_, groups()});
  }

  // One of several keys gets another dtype, or another extent.
  void spoil(PackedKey& key) {
    if (input_.once_in(16)) key.dtype = all_dtypes()[input_.byte() % all_dtypes().size()];
    if (!input_.once_in(8)) return;
    std::vector<std::uint64_t> dims(key.shape.begin(), key.shape.end());
    if (dims.empty() || input_.once_in(4)) {
      dims.push_back(input_.below(3));
    } else {
      dims[input_.below(dims.size())] += input_.below(4);
    }
    key.shape = Shape(dims);
  }

  Input& input_;
  std::string module_;
  std::uint64_t out_ = 0;
  std::uint64_t in_ = 0;
  PackedKeys made_;
};

inline PackedKeys make_packed_keys(Input& input, std::string module) {
  return PackedKeysMaker(input, std::move(module)).make();
}

}  // namespace lading::fuzz
