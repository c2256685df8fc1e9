// Payloads of quantized weights and their scales (R48). Scheme by scheme: tests/load/test_quantized.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/planner_support.h"

namespace lading::planner {
namespace {

using namespace world;  // NOLINT(google-build-using-namespace): the tests' own words

constexpr DType kPayload = DType::kF8E4M3;

World scaled() {
  return {{{"a.weight", {4, 4}, kPayload}, {"a.weight_scale_inv", {1, 1}}}, {param("a.weight", {4, 4}, kPayload)}};
}

World everything_allowed(World world) {
  world.policy.unexpected = policy::Strictness::kReport;
  world.policy.allow_unexpected = {"*"};
  world.policy.allow_missing = {"*"};
  world.policy.allow_mismatch = {"*"};
  return world;
}

TEST(PlannerQuantized, R48_APayloadWithoutItsScaleIsRefusedWhateverIsAllowed) {
  EXPECT_EQ(verdict(scaled()), "R48 a.weight") << "and its scale is told with it";
  EXPECT_EQ(verdict(everything_allowed(scaled())), "R48 a.weight");
  World cast = everything_allowed(scaled());
  cast.tensors = {param("a.weight", {4, 4}, DType::kBF16)};
  cast.policy.dtype = DType::kBF16;
  EXPECT_EQ(verdict(cast), "accepted") << "dequantized";
  cast.policy.quantized = policy::Quantized::kKeep;
  cast.policy.cast = policy::Cast::kExact;
  EXPECT_EQ(verdict(cast), "R48 a.weight");
  cast.policy.cast = policy::Cast::kPromote;
  EXPECT_EQ(verdict(cast), "R48 a.weight") << "not told again as a dtype that does not promote";
}

TEST(PlannerQuantized, R48_AModelThatHoldsTheScaleIsLoaded) {
  World world = scaled();
  world.tensors.push_back(param("a.weight_scale_inv", {1, 1}));
  EXPECT_EQ(verdict(world), "accepted");
  world.tensors.back().name = "a.scale";
  world.build("a.scale", mapping::Expression::source("a.weight_scale_inv"));
  EXPECT_EQ(verdict(world), "accepted") << "under whatever name";
}

TEST(PlannerQuantized, R48_AScaleThatTheCallerHandsInIsThere) {
  World world = scaled();
  world.tensors.push_back(param("a.weight_scale_inv", {1, 1}));
  world.policy.external = {"a.weight_scale_inv"};
  EXPECT_EQ(verdict(world), "accepted");
  world.policy.external = {};
  world.policy.keep = {"a.weight_scale_inv"};
  world.tensors.back() = real(world.tensors.back());
  EXPECT_EQ(verdict(world), "R48 a.weight") << "that of another payload";
}

// "a.qweight" is no name of an ordinary model: what a user sees of it are keys that are missing and unexpected.
TEST(PlannerQuantized, R48_ACheckpointWhosePayloadsHaveOtherNamesIsCalledQuantized) {
  World world{{{"a.qweight", {1, 8}, DType::kI32},
               {"a.scales", {1, 8}, DType::kF16},
               {"a.qzeros", {1, 1}, DType::kI32},
               {"a.g_idx", {8}, DType::kI32}},
              {param("a.weight", {8, 8}, DType::kBF16)}};
  const auto skeleton = model::make_skeleton(world.tensors, {}, {});
  ASSERT_TRUE(skeleton);
  checkpoint::Catalog catalog = world.catalog();
  catalog.quantization = checkpoint::Quantization{"gptq", ""};
  const PlanInputs inputs{catalog, *skeleton, world.layout, world.mapping, world.policy};
  const auto refused = make_plan(inputs, {0});
  ASSERT_FALSE(refused);
  const std::string first = refused.error().front().text();
  EXPECT_NE(first.find("the checkpoint is quantized (gptq), but the model is not"), std::string::npos) << first;
  EXPECT_NE(first.find("\"a.qweight\""), std::string::npos) << first;
  EXPECT_NE(first.find("config.json says quant_method \"gptq\""), std::string::npos) << first;
  EXPECT_GT(refused.error().size(), 1U) << "the keys are told too";
}

TEST(PlannerQuantized, R48_TheRemedyIsThatOfTheReason) {
  World world = scaled();
  world.tensors = {param("a.weight", {4, 4}, DType::kBF16)};
  const auto remedy = [&] {
    const auto plan = world.plan();
    return plan ? std::string("accepted") : plan.error().front().remedy;
  };
  EXPECT_EQ(remedy(), "accepted");
  world.quantization = checkpoint::Quantization{"fp8", "", {2, 2}};
  EXPECT_THAT(remedy(), ::testing::HasSubstr("Get the config.json that belongs to the files"));
  world.quantization = checkpoint::Quantization{"unheard of", ""};
  EXPECT_THAT(remedy(), ::testing::HasSubstr("Load a checkpoint that is not quantized"));
  world.policy.quantized = policy::Quantized::kKeep;
  EXPECT_THAT(remedy(), ::testing::HasSubstr("Omit \"quantized\": \"keep\""));
}

// What is wrong is the model or its names: lading would dequantize these payloads.
TEST(PlannerQuantized, R39_AModelWithOtherNamesIsNotBlamedOnQuantization) {
  World world = scaled();
  world.tensors = {param("b.weight", {4, 4}, DType::kBF16)};
  EXPECT_EQ(verdict(world), "R39; R39 b.weight; R39 a.weight; R39 a.weight_scale_inv");
  world.keys = {{"a.up_blocks", {2, 4, 1, 16}, DType::kU8}, {"a.up_scales", {2, 4, 1}, DType::kU8}};
  EXPECT_EQ(verdict(world), "R39; R39 b.weight; R39 a.up_blocks; R39 a.up_scales");
  world.policy.quantized = policy::Quantized::kKeep;
  EXPECT_THAT(verdict(world), ::testing::HasSubstr("R48"));
}

TEST(PlannerQuantized, R48_APartOfAModelNeedNotHoldTheScale) {
  const World world = everything_allowed(scaled());
  const auto skeleton = model::make_skeleton(world.tensors, {}, {});
  ASSERT_TRUE(skeleton);
  const checkpoint::Catalog catalog = world.catalog();
  PlanInputs inputs{catalog, *skeleton, world.layout, world.mapping, world.policy};
  EXPECT_FALSE(make_plan(inputs, {0}));
  inputs.is_part_of_model = true;
  EXPECT_TRUE(make_plan(inputs, {0}));
}

TEST(PlannerQuantized, R48_ARuleThatIgnoresTheScaleChangesNothing) {
  World world = scaled();
  world.mapping.rules = {mapping::Rule::ignore("scales", R"(.*_scale_inv)")};
  EXPECT_EQ(verdict(world), "R48 a.weight");
}

TEST(PlannerQuantized, R48_APayloadUnderAnotherNameIsOne) {
  World world = everything_allowed(scaled());
  world.tensors = {param("b", {8, 4}, kPayload)};
  world.keys.push_back({"c.weight", {4, 4}, kPayload});
  const auto source = mapping::Expression::source;
  world.build("b", mapping::Expression::concat(0, {source("a.weight"), source("c.weight")}));
  EXPECT_EQ(verdict(world), "R48 b");
}

TEST(PlannerQuantized, R48_EveryPayloadOfEveryPatternIsTold) {
  World world;
  for (const char* name : {"l.0.a.weight", "l.1.a.weight", "l.0.b.weight", "l.1.b.weight", "h.weight"}) {
    world.keys.push_back({name, {2}, kPayload});
    world.keys.push_back({std::string(name) + "_scale", {1}});
    world.tensors.push_back(param(name, {2}, kPayload));
  }
  const auto plan = world.plan();
  EXPECT_EQ(verdict(plan), "R48 h.weight; R48 l.0.a.weight; R48 l.0.b.weight");
  EXPECT_NE(all_text(plan.error()).find("\"l.*.a.weight\""), std::string::npos) << all_text(plan.error());
}

TEST(PlannerQuantized, R48_FewBitsAloneSayNothing) {
  World world = {{{"a.weight", {4, 4}, kPayload}, {"a.input_scale", {}}}, {param("a.weight", {4, 4}, kPayload)}};
  EXPECT_EQ(verdict(everything_allowed(world)), "accepted");
  world.keys[1] = {"b.weight_scale", {}};
  EXPECT_EQ(verdict(everything_allowed(world)), "accepted") << "of another module";
  world.keys = {{"a.weight", {4, 4}, DType::kBF16}, {"a.weight_scale", {}}};
  world.tensors = {param("a.weight", {4, 4}, DType::kBF16)};
  EXPECT_EQ(verdict(everything_allowed(world)), "accepted") << "no payload";
}

TEST(PlannerQuantized, R48_ACheckpointThatCallsItselfQuantizedIsNotCast) {
  World world = {{{"a.weight", {4, 4}, kPayload}, {"a.norm", {4}}},
                 {param("a.weight", {4, 4}, DType::kBF16), param("a.norm", {4})}};
  world.policy.dtype = DType::kBF16;
  world.policy.cast = policy::Cast::kExact;
  EXPECT_EQ(verdict(world), "accepted");
  world.quantization = checkpoint::Quantization{"fp8", ""};
  const auto plan = world.plan();
  EXPECT_EQ(verdict(plan), "R48 a.weight");
  EXPECT_NE(plan.error().front().found.find("\"fp8\""), std::string::npos) << plan.error().front().text();
  world.policy = {};
  EXPECT_EQ(verdict(world), "R48 a.weight") << "a tensor of BF16 can only get wrong values";
  world.tensors[0] = param("a.weight", {4, 4}, kPayload);
  EXPECT_EQ(verdict(world), "accepted") << "a module that computes with payloads";
}

}  // namespace
}  // namespace lading::planner
