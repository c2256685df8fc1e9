// For tests: checkpoints whose weight x.weight [16, 64] is stored as packed codes, one for each scheme.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/planner_support.h"

namespace lading::planner::world {

inline checkpoint::Quantization compressed(std::uint64_t bits, std::int64_t group_size) {
  checkpoint::Quantization said{"compressed-tensors", "pack-quantized"};
  said.bits = bits;
  said.group_size = group_size;
  return said;
}

inline checkpoint::Quantization gptq_config() {
  checkpoint::Quantization said{"gptq", ""};
  said.bits = 4;
  said.group_size = 32;
  said.has_order = false;
  return said;
}

inline checkpoint::Quantization awq_config() {
  checkpoint::Quantization said{"awq", "gemm"};
  said.bits = 4;
  said.group_size = 32;
  return said;
}

// x.weight [16, 64] of each scheme.
inline World gptq_world() {
  World world{{{"x.qweight", {8, 16}, DType::kI32},
               {"x.scales", {2, 16}, DType::kF16},
               {"x.qzeros", {2, 2}, DType::kI32},
               {"x.g_idx", {64}, DType::kI32}},
              {param("x.weight", {16, 64}, DType::kF16)}};
  world.quantization = gptq_config();
  return world;
}

inline World awq_world() {
  World world{
      {{"x.qweight", {64, 2}, DType::kI32}, {"x.scales", {2, 16}, DType::kF16}, {"x.qzeros", {2, 2}, DType::kI32}},
      {param("x.weight", {16, 64}, DType::kF16)}};
  world.quantization = awq_config();
  return world;
}

inline World int4_world() {
  World world{{{"x.weight_packed", {16, 8}, DType::kI32},
               {"x.weight_scale", {16, 2}, DType::kBF16},
               {"x.weight_shape", {2}, DType::kI64}},
              {param("x.weight", {16, 64}, DType::kBF16)}};
  world.quantization = compressed(4, 32);
  return world;
}

inline World asymmetric_world() {
  World world = int4_world();
  world.keys.push_back({"x.weight_zero_point", {2, 2}, DType::kI32});
  return world;
}

inline World int8_world() {
  World world{{{"x.weight", {16, 64}, DType::kI8}, {"x.weight_scale", {16, 1}, DType::kBF16}},
              {param("x.weight", {16, 64}, DType::kBF16)}};
  world.quantization = checkpoint::Quantization{"compressed-tensors", "int-quantized"};
  world.quantization->bits = 8;
  world.quantization->group_size = -1;
  return world;
}

inline World nvfp4_world() {
  World world{{{"x.weight_packed", {16, 32}, DType::kU8},
               {"x.weight_scale", {16, 4}, DType::kF8E4M3},
               {"x.weight_global_scale", {1}, DType::kF32}},
              {param("x.weight", {16, 64}, DType::kBF16)}};
  world.quantization = checkpoint::Quantization{"compressed-tensors", "nvfp4-pack-quantized"};
  return world;
}

inline World modelopt_world() {
  World world{{{"x.weight", {16, 32}, DType::kU8},
               {"x.weight_scale", {16, 4}, DType::kF8E4M3},
               {"x.weight_scale_2", {}, DType::kF32}},
              {param("x.weight", {16, 64}, DType::kBF16)}};
  world.quantization = checkpoint::Quantization{"modelopt", ""};
  return world;
}

inline World mxfp4_world() {
  World world{{{"x.up_blocks", {3, 16, 2, 16}, DType::kU8}, {"x.up_scales", {3, 16, 2}, DType::kU8}},
              {param("x.up", {3, 64, 16}, DType::kBF16)}};
  world.quantization = checkpoint::Quantization{"mxfp4", ""};
  return world;
}

inline std::vector<std::pair<std::string, World>> all_schemes() {
  return {{"gptq", gptq_world()}, {"awq", awq_world()},     {"int4", int4_world()},      {"int4", asymmetric_world()},
          {"int8", int8_world()}, {"nvfp4", nvfp4_world()}, {"nvfp4", modelopt_world()}, {"mxfp4", mxfp4_world()}};
}

inline Key& key(World& world, std::string_view name) {
  const auto found = std::find_if(world.keys.begin(), world.keys.end(), [&](const Key& k) { return k.name == name; });
  if (found != world.keys.end()) return *found;
  ADD_FAILURE() << name;
  return world.keys.front();
}

inline void drop(World& world, std::string_view name) {
  std::erase_if(world.keys, [&](const Key& k) { return k.name == name; });
}

inline const mapping::Expression& leaf_of(const Plan& plan, std::string_view tensor) {
  const mapping::Expression* leaf = &plan.find(tensor)->expression;
  while (leaf->op != mapping::Op::kDequantize) leaf = &leaf->parts.front();
  return *leaf;
}

}  // namespace lading::planner::world
