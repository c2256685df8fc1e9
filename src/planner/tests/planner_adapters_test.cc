// Adapters: checkpoints of their own behind the base's, whose keys are named one by one and never mapped.
#include <gtest/gtest.h>

#include "support/planner_support.h"

namespace lading::planner {
namespace {

using namespace world;  // NOLINT(google-build-using-namespace): the tests' own words

// Base and adapter both have a key "w", of one shape, in files of one name.
World with_adapter() {
  World world{{{"w", {4}}}, {param("w", {4}), adapter(param("w.lora", {4}))}};
  world.adapters = {{{{"w", {4}}}, {{"w", "w.lora"}}}};
  return world;
}

TEST(PlannerAdapters, R65_EachTensorReadsTheKeyOfItsOwnCheckpoint) {
  const auto plan = with_adapter().plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(source_of(plan, "w"), "file R38");
  EXPECT_EQ(source_of(plan, "w.lora"), "file R65");
  EXPECT_EQ(held(*plan, 0, "w"), "w:0 w:1 w:2 w:3");
  EXPECT_EQ(held(*plan, 0, "w.lora"), "w@1:0 w@1:1 w@1:2 w@1:3");
  EXPECT_EQ(plan->find("w.lora")->checkpoint, 1U);
  ASSERT_EQ(plan->files.size(), 2U);
  EXPECT_EQ(plan->files[FileId(0)].name, plan->files[FileId(1)].name);
}

TEST(PlannerAdapters, R65_TwoAdaptersHaveTheSameKeys) {
  World world = with_adapter();
  world.tensors.push_back(adapter(param("w.other", {4})));
  world.adapters.push_back({{{"w", {4}}}, {{"w", "w.other"}}});
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(held(*plan, 0, "w.lora"), "w@1:0 w@1:1 w@1:2 w@1:3");
  EXPECT_EQ(held(*plan, 0, "w.other"), "w@2:0 w@2:1 w@2:2 w@2:3");
}

TEST(PlannerAdapters, R16_ARankReadsItsOwnPartOnly) {
  const auto plan = with_adapter().mesh({{"dp", 2}}).place("*", {shard(0, 0)}).plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(held(*plan, 1, "w.lora"), "w@1:2 w@1:3");
  EXPECT_EQ(rank_of(*plan, 0)->read_bytes, 16U) << "half of both tensors, of 4 F32 each";
  EXPECT_EQ(rank_of(*plan, 1)->read_bytes, 16U);
}

TEST(PlannerAdapters, R65_NoMappingTouchesThem) {
  World world = with_adapter();
  world.tensors.front().name = "base.w";
  world.mapping.rules.push_back(mapping::Rule::rename_pattern("prefix", "(.*)", "base.\\1"));
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(held(*plan, 0, "base.w"), "w:0 w:1 w:2 w:3");
  EXPECT_EQ(held(*plan, 0, "w.lora"), "w@1:0 w@1:1 w@1:2 w@1:3");
}

TEST(PlannerAdapters, AKeyWithoutAnEntryIsTheTensorOfItsOwnNameAndGoesBeforeTheBase) {
  World world = with_adapter();
  world.adapters[0].keys.push_back({"w.lora", {4}});
  world.adapters[0].names.clear();
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(held(*plan, 0, "w"), "w@1:0 w@1:1 w@1:2 w@1:3");
  EXPECT_EQ(plan->ignored_keys, (std::vector<std::pair<std::string, std::string>>{{"w", "adapter"}}));
}

TEST(PlannerAdapters, R39_R41_R43_EveryKeyHasAPlaceAndEveryNameAKey) {
  World missing = with_adapter();
  missing.adapters[0].names["other"] = "w";
  EXPECT_EQ(verdict(missing), "R39 w");
  EXPECT_EQ(missing.plan().error().front().file, "an/adapter");
  EXPECT_FALSE(missing.plan().error().front().remedy.empty());
  World surplus = with_adapter();
  surplus.adapters[0].keys.push_back({"surplus", {1}});
  surplus.policy.unexpected = policy::Strictness::kReport;
  EXPECT_EQ(verdict(surplus), "R39 surplus") << "what the base may have too much says nothing of an adapter";
  World nowhere = with_adapter();
  nowhere.adapters[0].names["w"] = "nowhere";
  EXPECT_EQ(verdict(nowhere), "R39 w; R13 w.lora");
  World shape = with_adapter();
  shape.adapters[0].keys[0].shape = {2, 2};
  EXPECT_EQ(verdict(shape), "R41 w.lora");
  World twice = with_adapter();
  twice.adapters.push_back(twice.adapters.front());
  EXPECT_EQ(verdict(twice), "R43 w.lora");
}

TEST(PlannerAdapters, R14_TheUsersWordGoesBeforeThem) {
  World external = with_adapter();
  external.policy.external = {"w.lora"};
  const auto plan = external.plan();
  EXPECT_EQ(source_of(plan, "w.lora"), "host R14");
  EXPECT_EQ(plan->ignored_adapter_keys, (std::vector<plan::IgnoredAdapterKey>{{1, "w", "external"}}));
  World keep = with_adapter();
  keep.tensors.back() = real(keep.tensors.back());
  keep.policy.keep = {"w.lora"};
  EXPECT_EQ(verdict(keep), "R14 w.lora") << "two values for one tensor";
}

TEST(PlannerAdapters, R24_TheModulesDTypeDecidesAndTheFileIsCastOnce) {
  World wide = with_adapter();
  wide.adapters[0].keys[0].dtype = DType::kBF16;
  wide.policy.dtype = DType::kBF16;
  const auto plan = wide.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(plan->find("w.lora")->storage, DType::kF32) << "PEFT made it F32, and a request never narrows";
  EXPECT_EQ(plan->find("w.lora")->checkpoint_dtype, DType::kBF16);
  World narrow = with_adapter();
  narrow.tensors.back().dtype = DType::kBF16;
  EXPECT_EQ(narrow.plan()->find("w.lora")->storage, DType::kBF16);
  World integer = with_adapter();
  integer.adapters[0].keys[0].dtype = DType::kI64;
  EXPECT_EQ(verdict(integer), "R23 w.lora");
}

TEST(PlannerAdapters, R23_ACopyOfABaseTensorHasTheDTypeThatTheBaseGivesIt) {
  World world{{{"w", {4}, DType::kBF16}}, {param("copy", {4}), adapter(param("lora", {4})), param("w", {4})}};
  for (const char* name : {"w", "copy"}) {
    const auto from_w = mapping::ExpressionTemplate::literal(mapping::Expression::source("w"));
    world.mapping.rules.push_back(mapping::Rule::build(name, name, from_w));
  }
  world.adapters = {{{{"c", {4}}, {"l", {4}}}, {{"c", "copy"}, {"l", "lora"}}}};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(plan->find("w")->storage, DType::kBF16);
  EXPECT_EQ(plan->find("copy")->storage, DType::kBF16) << "though the adapter and the constructor have F32";
  EXPECT_EQ(plan->find("copy")->checkpoint_dtype, DType::kF32);
  EXPECT_EQ(plan->find("lora")->storage, DType::kF32);
  World quantized = world;
  quantized.keys.front().dtype = DType::kF8E4M3;
  EXPECT_EQ(quantized.plan()->find("copy")->storage, DType::kF32) << "a trained value is not made a payload";
}

TEST(PlannerAdapters, R50_TiedNamesWithTwoKeysOfOneAdapterAreCompared) {
  World world{{{"head", {4}}}, {param("embed", {4}), param("head", {4})}, {{"embed", "head"}}};
  world.adapters = {{{{"e", {4}}, {"h", {4}}}, {{"e", "embed"}, {"h", "head"}}}};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(held(*plan, 0, "head"), "e@1:0 e@1:1 e@1:2 e@1:3");
  EXPECT_EQ(compared(*plan, 0, "head"), (std::vector<std::string>{"h@1:0 h@1:1 h@1:2 h@1:3"}));
  world.adapters = {{{{"e", {4}}}, {{"e", "embed"}}}, {{{"h", {4}}}, {{"h", "head"}}}};
  EXPECT_EQ(verdict(world), "R50 head") << "two adapters, one storage";
}

// The planted mistake: both checkpoints have the key, and the plan takes it from the wrong one.
TEST(PlannerAdapters, R41_TheCheckerFindsTheKeyOfTheWrongCheckpoint) {
  const auto plan = with_adapter().plan();
  ASSERT_TRUE(plan) << verdict(plan);
  const std::size_t lora = plan->statements.id_of(*plan->find("w.lora")).number();

  Plan transfer = *plan;
  for (Destination& d : transfer.ranks[0].destinations) {
    if (d.statement.number() == lora) d.transfers.front().source = SourceId(0);
  }
  ASSERT_EQ(transfer.sources[SourceId(0)].key, "w");
  ASSERT_EQ(transfer.files[transfer.sources[SourceId(0)].file].checkpoint, 0U);
  EXPECT_FALSE(checker::check_plan(transfer));

  Plan statement = *plan;
  statement.statements[StatementId(lora)].checkpoint = 0;
  EXPECT_FALSE(checker::check_plan(statement)) << "it says the base's w, and the bytes are the adapter's";
  EXPECT_NE(plan::digest(statement), plan::digest(*plan));

  Plan file = *plan;
  file.files[file.sources[SourceId(1)].file].checkpoint = 0;
  EXPECT_FALSE(checker::check_plan(file)) << "the base has the file twice, and the adapter has no w";
  EXPECT_NE(plan::digest(file), plan::digest(*plan));
}

}  // namespace
}  // namespace lading::planner
