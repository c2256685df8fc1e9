#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "policy/policy.h"

namespace lading::policy {
namespace {

using model::PinStrength;
using ::testing::ElementsAre;

model::Skeleton skeleton_with(std::vector<model::Pin> pins) {
  std::vector<model::Tensor> tensors;
  for (const char* name : {"layers.0.norm.weight", "layers.0.layernorm_x.weight", "layers.0.mixer.A_log",
                           "layers.0.mlp.gate.weight", "layers.0.mlp.gate_up.weight", "word_embeddings.weight"}) {
    model::Tensor tensor;
    tensor.name = name;
    tensor.shape = Shape{2};
    tensors.push_back(std::move(tensor));
  }
  auto skeleton = model::make_skeleton(std::move(tensors), {}, std::move(pins));
  EXPECT_TRUE(skeleton);
  return std::move(skeleton).value();
}

TEST(Pins, R25_NormIsNotLayernorm) {
  EXPECT_TRUE(pin_matches("norm", "norm.weight"));
  EXPECT_TRUE(pin_matches("norm", "a.norm"));
  EXPECT_TRUE(pin_matches("norm", "norm"));
  EXPECT_FALSE(pin_matches("norm", "layernorm_x"));
  EXPECT_FALSE(pin_matches("norm", "a.layernorm.weight"));
  EXPECT_FALSE(pin_matches("norm", "a.norms.weight"));
  EXPECT_FALSE(pin_matches("wo", "word_embeddings.weight")) << "transformers' search finds this one";
}

TEST(Pins, R25_ComponentsSideBySide) {
  EXPECT_TRUE(pin_matches("mlp.gate", "layers.0.mlp.gate.weight"));
  EXPECT_FALSE(pin_matches("mlp.gate", "layers.0.mlp.gate_up.weight"));
  EXPECT_FALSE(pin_matches("mlp.gate", "layers.0.mlp.x.gate.weight"));
  EXPECT_TRUE(pin_matches("gate.weight", "layers.0.mlp.gate.weight"));
  EXPECT_FALSE(pin_matches("gate.weight", "gate"));
  EXPECT_TRUE(pin_matches("a.b", "a.a.b"));
  EXPECT_FALSE(pin_matches("", "a"));
}

TEST(Pins, R25_AStarStaysInItsComponent) {
  EXPECT_TRUE(pin_matches("mtp.*", "model.mtp.layers.0.w"));
  EXPECT_FALSE(pin_matches("mtp.*", "model.mtp"));
  EXPECT_TRUE(pin_matches("*norm", "a.q_norm.weight"));
  EXPECT_TRUE(pin_matches("*norm*", "a.layernorm_x.weight"));
  EXPECT_FALSE(pin_matches("a*c", "a.b.c"));
  EXPECT_TRUE(pin_matches("a*b*c", "aXbYbZc.w"));
  EXPECT_FALSE(pin_matches("a*b*c", "aXbYbZ.c"));
}

TEST(Pins, R25_WhatEachStrengthWithstands) {
  const std::vector<std::pair<DType, bool>> fp16_only = {{DType::kF16, true},    {DType::kBF16, false},
                                                         {DType::kF32, false},   {DType::kF64, false},
                                                         {DType::kF8E4M3, true}, {DType::kI64, false}};
  for (const auto& [dtype, holds] : fp16_only)
    EXPECT_EQ(pin_withstands(PinStrength::kFloat16, dtype), holds) << name(dtype);
  const std::vector<std::pair<DType, bool>> strict = {{DType::kF16, true},    {DType::kBF16, true},
                                                      {DType::kF32, false},   {DType::kF64, false},
                                                      {DType::kF8E4M3, true}, {DType::kI64, false}};
  for (const auto& [dtype, holds] : strict) {
    EXPECT_EQ(pin_withstands(PinStrength::kFloat16AndBFloat16, dtype), holds) << name(dtype);
  }
}

TEST(Pins, R25_PinsOfSkeletonAndPolicyCountTogetherAndTheStrongestWins) {
  Policy policy;
  policy.pins = {{"layers.0.norm", PinStrength::kFloat16AndBFloat16}};
  const Pins pins(skeleton_with({{"norm", PinStrength::kFloat16}, {"mlp.gate", PinStrength::kFloat16}}), policy);
  EXPECT_EQ(pins.of("layers.0.norm.weight"), PinStrength::kFloat16AndBFloat16);
  EXPECT_EQ(pins.of("layers.0.mlp.gate.weight"), PinStrength::kFloat16);
  EXPECT_EQ(pins.of("layers.0.mixer.A_log"), std::nullopt);
  EXPECT_TRUE(pins.holds("layers.0.norm.weight", DType::kBF16));
  EXPECT_FALSE(pins.holds("layers.0.mlp.gate.weight", DType::kBF16));
  EXPECT_TRUE(pins.holds("layers.0.mlp.gate.weight", DType::kF16));
  EXPECT_FALSE(pins.holds("layers.0.mixer.A_log", DType::kF16));
}

TEST(Pins, R25_PinsThatMatchNothingAreReported) {
  Policy policy;
  policy.pins = {{"dt_bias", PinStrength::kFloat16}};
  const Pins pins(skeleton_with({{"A_log", PinStrength::kFloat16}, {"wo", PinStrength::kFloat16}}), policy);
  EXPECT_THAT(pins.unmatched(), ElementsAre("wo", "dt_bias"));
}

TEST(Pins, R25_ANameIsOneTensorAndNoPattern) {
  Policy policy;
  policy.pins = {{NamePattern::exact("a.*"), PinStrength::kFloat16}};
  const model::Skeleton none;
  const Pins pins(none, policy);
  EXPECT_TRUE(pins.of("a.*").has_value());
  for (const char* const other : {"a.b", "x.a.*", "a.*.b", "a"}) EXPECT_FALSE(pins.of(other).has_value()) << other;
}

// The look-up by components and the matcher say the same of every pair.
TEST(Pins, R25_TheIndexSaysWhatTheMatcherSays) {
  const std::vector<std::string> patterns = {"a", "b.c", "a.b.c", "*.c", "b*", "c.a", "x", "a.*.c", "d.d"};
  const std::vector<std::string> names = {"a", "a.b", "a.b.c", "b.c.a", "c", "bb.c", "d.d.d", "z.b.c.a", "ab.c"};
  for (const std::string& pattern : patterns) {
    Policy policy;
    policy.pins = {{pattern, PinStrength::kFloat16}};
    const model::Skeleton none;
    const Pins pins(none, policy);
    for (const std::string& name : names)
      EXPECT_EQ(pins.of(name).has_value(), pin_matches(pattern, name)) << pattern << " " << name;
  }
}

}  // namespace
}  // namespace lading::policy
