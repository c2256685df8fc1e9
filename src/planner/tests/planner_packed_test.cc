// Weights that a checkpoint holds as packed codes, under names that no model has (R48): which schemes are recognised,
// and which are refused and why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "planner/quantized/packed_weights.h"
#include "planner/tests/packed_worlds_for_tests.h"

namespace lading::planner {
namespace {

using namespace world;  // NOLINT(google-build-using-namespace): the tests' own words
using mapping::Expression;

TEST(PlannerPacked, R48_EverySchemeIsRecognised) {
  for (const auto& [scheme, world] : all_schemes()) {
    const PackedWeights found = find_packed_weights(world.catalog());
    ASSERT_EQ(found.by_name.size(), 1U) << scheme;
    const auto& [name, weight] = *found.by_name.begin();
    EXPECT_EQ(weight.scheme, scheme);
    EXPECT_EQ(name, world.tensors.front().name);
    EXPECT_EQ(weight.shape, world.tensors.front().shape) << scheme;
    EXPECT_EQ(weight.keys.size(), world.keys.size()) << scheme;
    EXPECT_EQ(verdict(world), "accepted") << scheme;
    World cut = world;
    cut.mesh({{"x", 5}}).place("*", {shard(0, 1)});
    EXPECT_EQ(verdict(cut), "accepted") << scheme;
    cut.layout.rules.front().placement.slots.front().cuts = {flat({0})};
    EXPECT_EQ(verdict(cut), "accepted") << scheme;
  }
}

TEST(PlannerPacked, R48_WhatIsSubtractedAndMultiplied) {
  const auto leaf = [](const World& world) {
    const auto plan = world.plan();
    EXPECT_TRUE(plan) << verdict(plan);
    return leaf_of(*plan, world.tensors.front().name);
  };
  const Expression of_gptq = leaf(gptq_world());
  EXPECT_EQ(of_gptq.decoding.zero, 1U);
  EXPECT_EQ(of_gptq.zeros, "x.qzeros");
  EXPECT_EQ(of_gptq.decoding.zeros_dim, 1U);
  EXPECT_EQ(of_gptq.shape, (Shape{4, 1, 8}));
  World second = gptq_world();
  second.quantization->format = "gptq_v2";
  EXPECT_EQ(leaf(second).decoding.zero, 0U);
  second.quantization->group_size = -1;
  key(second, "x.scales").shape = {1, 16};
  key(second, "x.qzeros").shape = {1, 2};
  EXPECT_EQ(leaf(second).shape, (Shape{8, 1, 8}));
  const Expression of_awq = leaf(awq_world());
  EXPECT_EQ(of_awq.decoding.zero, 0U);
  EXPECT_EQ(of_awq.decoding.scale_order, (std::vector<std::size_t>{0, 2, 4, 6, 1, 3, 5, 7}));
  EXPECT_EQ(of_awq.shape, (Shape{32, 1, 1}));
  EXPECT_EQ(leaf(int4_world()).decoding.zero, 8U);
  EXPECT_EQ(leaf(int4_world()).zeros, "");
  EXPECT_EQ(leaf(asymmetric_world()).decoding.zero, 0U);
  EXPECT_EQ(leaf(asymmetric_world()).decoding.zeros_dim, 0U);
  EXPECT_EQ(leaf(asymmetric_world()).zeros, "x.weight_zero_point");
  EXPECT_EQ(leaf(int8_world()).decoding.code, CodeType::kI8);
  EXPECT_EQ(leaf(int8_world()).decoding.zero, 0U);
  EXPECT_EQ(leaf(nvfp4_world()).decoding.tensor_scale, TensorScale::kDivisor);
  EXPECT_EQ(leaf(nvfp4_world()).tensor_scale, "x.weight_global_scale");
  EXPECT_EQ(leaf(modelopt_world()).decoding.tensor_scale, TensorScale::kFactor);
  EXPECT_EQ(leaf(mxfp4_world()).decoding.scale_dtype, DType::kF8E8M0);
  World e8m0 = mxfp4_world();
  key(e8m0, "x.up_scales").dtype = DType::kF8E8M0;
  EXPECT_EQ(leaf(e8m0).decoding.scale_dtype, std::nullopt);
}

// What the reference implementations round products to.
TEST(PlannerPacked, R48_TheProductsOfReferences) {
  const auto product = [](World world) {
    const auto exact = world.plan();
    EXPECT_TRUE(exact) << verdict(exact);
    EXPECT_EQ(leaf_of(*exact, world.tensors.front().name).product, std::nullopt);
    world.policy.arithmetic = policy::Arithmetic::kReference;
    const auto plan = world.plan();
    EXPECT_TRUE(plan) << verdict(plan);
    return leaf_of(*plan, world.tensors.front().name).product;
  };
  EXPECT_EQ(product(int4_world()), DType::kBF16) << "compressed-tensors multiplies in the scales' dtype";
  World f16 = int4_world();
  key(f16, "x.weight_scale").dtype = DType::kF16;
  EXPECT_EQ(product(f16), DType::kF16);
  EXPECT_EQ(product(int8_world()), DType::kBF16);
}

TEST(PlannerPacked, R48_TheToolsOfNvfp4RoundMoreThanOnce) {
  for (World world : {nvfp4_world(), modelopt_world()}) {
    world.policy.arithmetic = policy::Arithmetic::kReference;
    EXPECT_THAT(verdict(world.plan()), ::testing::HasSubstr("R48"));
  }
}

// The catalog finds a reason, and the plan's problem says it.
void expect_refused(const World& world, std::string_view reason, std::string_view tensor = "x.weight") {
  const PackedWeights found = find_packed_weights(world.catalog());
  EXPECT_TRUE(found.by_name.empty()) << reason;
  ASSERT_EQ(found.refused.size(), 1U) << reason;
  EXPECT_NE(found.refused.begin()->second.text.find(reason), std::string::npos) << found.refused.begin()->second.text;
  const auto plan = world.plan();
  ASSERT_FALSE(plan) << reason;
  const std::string text = all_text(plan.error());
  EXPECT_NE(text.find(reason), std::string::npos) << text;
  EXPECT_EQ(plan.error().front().rule, "R48") << text;
  World allowed = world;
  allowed.policy.unexpected = policy::Strictness::kReport;
  allowed.policy.allow_unexpected = {"*"};
  allowed.policy.allow_missing = {"*"};
  allowed.policy.allow_mismatch = {"*"};
  allowed.policy.cast = policy::Cast::kExact;
  const auto loaded = allowed.plan();
  if (!loaded) return;
  const plan::Statement* s = loaded->find(tensor);
  ASSERT_NE(s, nullptr);
  EXPECT_NE(s->provenance, Provenance::kFile) << "never codes as if they were numbers: " << reason;
}

TEST(PlannerPacked, R48_RefusedGptq) {
  const auto refused = [](std::string_view reason, const std::function<void(World&)>& change) {
    World world = gptq_world();
    change(world);
    expect_refused(world, reason);
  };
  for (const std::optional<bool> has_order : {std::optional(true), std::optional<bool>()}) {
    refused("desc_act", [&](World& world) {
      world.quantization->has_order = has_order;
      drop(world, "x.g_idx");
    });
  }
  refused("3 bits", [](World& world) { world.quantization->bits = 3; });
  refused("(bits)", [](World& world) { world.quantization->bits.reset(); });
  refused("(group_size)", [](World& world) { world.quantization->group_size.reset(); });
  refused("groups of 12 do not fit elements of 8", [](World& world) { world.quantization->group_size = 12; });
  refused("GPTQ or AWQ", [](World& world) { world.quantization->method = "hqq"; });
  refused("GPTQ or AWQ", [](World& world) { world.quantization.reset(); });
  refused("no zero points", [](World& world) { drop(world, "x.qzeros"); });
  refused("no zero points", [](World& world) { key(world, "x.qzeros").dtype = DType::kF16; });
  refused("two dims", [](World& world) { key(world, "x.scales").shape = {32}; });
  refused("not supported for scales", [](World& world) { key(world, "x.scales").dtype = DType::kF64; });
  refused("columns", [](World& world) { key(world, "x.scales").shape = {2, 8}; });
}

const Expression& leaf_of(const Expression& expression) {
  return expression.parts.empty() ? expression : leaf_of(expression.parts.front());
}

// Groups that count up are not looked up.
TEST(PlannerPacked, R48_ActivationOrder) {
  World int4 = int4_world();
  int4.keys.push_back({"x.weight_g_idx", {64}, DType::kI32});
  World int8 = int8_world();
  int8.keys.push_back({"x.weight_g_idx", {64}, DType::kI32});
  for (const auto& [world, key, dim] : {std::tuple(gptq_world(), "x.g_idx", 0U), std::tuple(int4, "x.weight_g_idx", 1U),
                                        std::tuple(int8, "x.weight_g_idx", 1U)}) {
    World changed = world;
    for (const bool is_plain : {false, true}) {
      changed.quantization->has_order = true;
      changed.quantization->ordered = {is_plain ? "y.g_idx" : key};
      const auto plan = changed.plan();
      ASSERT_TRUE(plan) << all_text(plan.error());
      const Expression& leaf = leaf_of(plan->find("x.weight")->expression);
      EXPECT_EQ(leaf.groups, is_plain ? "" : key);
      EXPECT_EQ(leaf.decoding.groups_dim, is_plain ? 0U : dim);
    }
    changed.quantization->ordered.clear();  // nobody looked
    const auto plan = changed.plan();
    ASSERT_TRUE(plan);
    EXPECT_EQ(leaf_of(plan->find("x.weight")->expression).groups, key);
  }
}

TEST(PlannerPacked, R48_RefusedAwq) {
  const auto refused = [](std::string_view reason, const std::function<void(World&)>& change) {
    World world = awq_world();
    change(world);
    expect_refused(world, reason);
  };
  refused("\"gemv\"", [](World& world) { world.quantization->format = "gemv"; });
  refused("AWQ with 8 bits", [](World& world) { world.quantization->bits = 8; });
  refused("(group_size)", [](World& world) { world.quantization->group_size.reset(); });
  refused("do not fit 64 rows", [](World& world) { world.quantization->group_size = 16; });
  refused("do not fit", [](World& world) { key(world, "x.qzeros").shape = {1, 2}; });
  refused("no zero points", [](World& world) { drop(world, "x.qzeros"); });
}

TEST(PlannerPacked, R48_RefusedCompressedTensors) {
  const auto refused = [](const World& of, std::string_view reason, const std::function<void(World&)>& change) {
    World world = of;
    change(world);
    expect_refused(world, reason);
  };
  refused(int4_world(), "(num_bits)", [](World& world) { world.quantization->bits.reset(); });
  refused(int4_world(), "(num_bits)", [](World& world) { world.quantization.reset(); });
  refused(int4_world(), "3 bits", [](World& world) { world.quantization->bits = 3; });
  refused(int4_world(), "not supported for scales",
          [](World& world) { key(world, "x.weight_scale").dtype = DType::kI32; });
  refused(int4_world(), "groups of 12", [](World& world) { world.quantization->group_size = 12; });
  refused(int4_world(), "the size of the 5 groups", [](World& world) {
    world.quantization->group_size.reset();
    key(world, "x.weight_scale").shape = {16, 5};
  });
  refused(nvfp4_world(), "x.weight_global_scale", [](World& world) { drop(world, "x.weight_global_scale"); });
  refused(nvfp4_world(), "F8_E4M3", [](World& world) { key(world, "x.weight_scale").dtype = DType::kF16; });
  refused(nvfp4_world(), "in F32", [](World& world) { key(world, "x.weight_global_scale").dtype = DType::kBF16; });
  refused(nvfp4_world(), "packed weights of I8",
          [](World& world) { key(world, "x.weight_packed").dtype = DType::kI8; });
}

TEST(PlannerPacked, R48_RefusedOthers) {
  World world = mxfp4_world();
  key(world, "x.up_blocks").shape = {3, 16, 2, 8};
  expect_refused(world, "blocks of 16 bytes", "x.up");
  world = mxfp4_world();
  key(world, "x.up_scales").dtype = DType::kBF16;
  expect_refused(world, "one byte for each scale", "x.up");
  world = modelopt_world();
  key(world, "x.weight_scale").dtype = DType::kF16;
  expect_refused(world, "NVFP4 needs");
  world = modelopt_world();
  key(world, "x.weight_scale_2").dtype = DType::kBF16;
  expect_refused(world, "NVFP4 needs");
  world = int8_world();
  world.keys.push_back({"x.weight_zero_point", {16, 1}, DType::kI32});
  expect_refused(world, "not in I8");
}

// Recognised, but what is there does not fit: no number is ever made up.
TEST(PlannerPacked, R48_ShapesThatDoNotFit) {
  for (const auto& [scheme, world] : all_schemes()) {
    for (const Key& of : world.keys) {
      if (of.name == "x.g_idx" || of.name == "x.weight_shape") continue;
      for (std::size_t d = 0; d < of.shape.rank(); ++d) {
        std::vector<std::uint64_t> dims(of.shape.begin(), of.shape.end());
        dims[d] += 1;
        World changed = world;
        key(changed, of.name).shape = Shape(dims);
        EXPECT_NE(verdict(changed), "accepted") << scheme << ": " << of.name << " " << Shape(dims).text();
      }
    }
    World other = world;
    other.tensors.front().shape = Shape{8, 8};
    EXPECT_NE(verdict(other), "accepted") << scheme;
  }
}

}  // namespace
}  // namespace lading::planner
