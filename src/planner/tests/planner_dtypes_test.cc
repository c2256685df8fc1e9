// Dtypes through the whole planner; the table itself is policy's (dtype_table_test.cc).
#include <gtest/gtest.h>

#include <functional>

#include "checker/check_naive_verdict_for_tests.h"
#include "support/planner_support.h"

namespace lading::planner {
namespace {

using namespace world;  // NOLINT(google-build-using-namespace): the tests' own words

// "F32/BF16": stored and computed in; or why there is no plan.
std::string dtypes(const World& world, std::string_view name) {
  const auto plan = world.plan();
  if (!plan) return "refused: " + verdict(plan);
  const Statement* s = plan->find(name);
  return fmt::format("{}/{}", lading::name(s->storage), lading::name(s->compute));
}

// A mixed file: a bf16 projection, an fp32 A_log and an integer buffer, all constructed as fp32 but the last.
World mixed() {
  return {{{"proj", {4}, DType::kBF16}, {"A_log", {4}, DType::kF32}, {"steps", {1}, DType::kI64}},
          {trained(param("proj", {4})), trained(param("A_log", {4})), buffer("steps", {1}, DType::kI64)}};
}

TEST(PlannerDtypes, R22_AutoMirrorsTheFile) {
  EXPECT_EQ(dtypes(mixed(), "proj"), "BF16/BF16");
  EXPECT_EQ(dtypes(mixed(), "A_log"), "F32/F32");
  EXPECT_EQ(dtypes(mixed(), "steps"), "I64/I64");
}

TEST(PlannerDtypes, R23_R24_ARequestNeverNarrowsAndCastsOnce) {
  World world = mixed();
  world.policy.dtype = DType::kBF16;
  EXPECT_EQ(dtypes(world, "A_log"), "F32/F32");
  world.policy.dtype = DType::kF32;
  EXPECT_EQ(dtypes(world, "proj"), "F32/F32");
  EXPECT_EQ(dtypes(world, "steps"), "I64/I64");
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  const Transfer& transfer = find(*plan, 0, "proj")->transfers.at(0);
  EXPECT_EQ(plan->sources[transfer.source].dtype, DType::kBF16) << "from the file's bits, and nothing between";
  EXPECT_EQ(find(*plan, 0, "proj")->buffer_bytes, 16U);
  EXPECT_EQ(plan->find("proj")->checkpoint_dtype, DType::kBF16) << "recorded before it was widened";
  world.policy.dtype = DType::kBF16;
  world.policy.cast = policy::Cast::kExact;
  EXPECT_EQ(dtypes(world, "A_log"), "BF16/BF16");
}

TEST(PlannerDtypes, R23_PartsOfUnlikeDtypesArePromotedOrRefused) {
  using mapping::Expression;
  World world{{{"a", {2}, DType::kBF16}, {"b", {2}, DType::kF16}}, {param("w", {4})}};
  world.build("w", Expression::concat(0, {Expression::source("a"), Expression::source("b")}));
  EXPECT_EQ(dtypes(world, "w"), "F32/F32");
  world.keys[1].dtype = DType::kF8E4M3;
  EXPECT_EQ(dtypes(world, "w").rfind("refused: R23 w", 0), 0U) << dtypes(world, "w");
}

TEST(PlannerDtypes, R25_PinsHoldAndUnmatchedOnesAreTold) {
  World world = mixed();
  world.keys[1].dtype = DType::kBF16;
  world.policy.dtype = DType::kBF16;
  world.pins = {{"A_log", model::PinStrength::kFloat16AndBFloat16}, {"norm", model::PinStrength::kFloat16}};
  EXPECT_EQ(dtypes(world, "A_log"), "F32/F32");
  EXPECT_EQ(dtypes(world, "proj"), "BF16/BF16");
  const auto plan = world.plan();
  ASSERT_EQ(plan->warnings.size(), 1U);
  EXPECT_EQ(plan->warnings.front().rule, "R25");
}

TEST(PlannerDtypes, R26_ComputeFollowsPinThenRecordThenPolicy) {
  World world{{{"proj", {4}, DType::kBF16}, {"A_log", {4}, DType::kF32}},
              {trained(param("proj", {4})), trained(param("A_log", {4})), init(param("fresh", {4}), fill(1))}};
  world.policy.dtype = DType::kF32;
  world.policy.compute_dtype = DType::kBF16;
  world.policy.allow_missing = {"fresh"};
  world.pins = {{"A_log", model::PinStrength::kFloat16AndBFloat16}};
  EXPECT_EQ(dtypes(world, "proj"), "F32/BF16");
  EXPECT_EQ(dtypes(world, "A_log"), "F32/F32");
  EXPECT_EQ(dtypes(world, "fresh"), "F32/BF16") << "no record, so the policy's";
}

// An F32 file, F32 masters, BF16 compute: the commonest recipe.
World f32_file() {
  World world{{{"gate", {4}, DType::kBF16}, {"m.A_log", {4}}, {"q", {4}}, {"k", {4}}, {"frozen", {4}}},
              {trained(param("gate", {4})), trained(param("m.A_log", {4})), trained(param("q", {4})),
               trained(param("k", {4})), param("frozen", {4})}};
  world.policy.dtype = DType::kF32;
  world.policy.compute_dtype = DType::kBF16;
  world.pins = {{"A_log", model::PinStrength::kFloat16AndBFloat16}};
  return world;
}

TEST(PlannerDtypes, R26_TheRulesOwnTestHoldsIfTheRecordIsIgnored) {
  World world = f32_file();
  world.policy.compute_record = policy::ComputeRecord::kIgnore;
  EXPECT_EQ(dtypes(world, "q"), "F32/BF16");
  EXPECT_EQ(dtypes(world, "gate"), "F32/BF16");
  EXPECT_EQ(dtypes(world, "m.A_log"), "F32/F32");
  EXPECT_EQ(world.plan()->warnings.size(), 0U);
}

TEST(PlannerDtypes, R26_AVoidComputeDtypeIsOneWarning) {
  World world = f32_file();
  EXPECT_EQ(dtypes(world, "q"), "F32/F32") << "the rule's text: the record goes first";
  EXPECT_EQ(dtypes(world, "gate"), "F32/BF16");
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  ASSERT_EQ(plan->warnings.size(), 1U) << all_text(plan->warnings);
  const Error& warning = plan->warnings.front();
  EXPECT_EQ(warning.code, Code::kDType);
  EXPECT_EQ(warning.rule, "R26");
  EXPECT_NE(warning.message.find("2 trainable parameters"), std::string::npos) << warning.message;
  EXPECT_EQ(warning.found, R"("k", "q")") << "neither the pinned one, nor the frozen one, nor the bf16 one";
  EXPECT_NE(warning.remedy.find(R"("compute_record": "ignore")"), std::string::npos) << warning.remedy;

  for (int i = 0; i < 8; ++i) {
    world.tensors.push_back(trained(param(fmt::format("z{}", i), {4})));
    world.keys.push_back({fmt::format("z{}", i), {4}});
  }
  EXPECT_EQ(world.plan()->warnings.front().found, R"("k", "q", "z0", "z1", "z2" and 5 more)");
  world.policy.compute_dtype = DType::kF32;
  EXPECT_EQ(world.plan()->warnings.size(), 0U) << "F32 was wanted";
  world.policy.compute_dtype.reset();
  EXPECT_EQ(world.plan()->warnings.size(), 0U);
  world.policy.compute_dtype = DType::kBF16;
  world.policy.dtype = DType::kBF16;
  world.policy.cast = policy::Cast::kExact;
  EXPECT_EQ(world.plan()->warnings.size(), 0U) << "stored in BF16, so the record is void";
}

TEST(PlannerDtypes, R26_ATieIsWarnedOfOnce) {
  World world{{{"embed", {4}}}, {trained(param("embed", {4})), trained(param("head", {4}))}, {{"embed", "head"}}};
  world.policy.compute_dtype = DType::kBF16;
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  ASSERT_EQ(plan->warnings.size(), 1U);
  EXPECT_EQ(plan->warnings.front().found, R"("embed")");
}

// The code is how callers know a request that was not followed from other warnings.
TEST(PlannerDtypes, R23_ARequestThatTheFilesOutdoIsOneWarning) {
  World world{{{"a", {4}},
               {"b", {4}, DType::kF64},
               {"c", {4}, DType::kBF16},
               {"A_log", {4}},
               {"t.w", {4}},
               {"n", {4}, DType::kI64}},
              {param("a", {4}), param("b", {4}), param("c", {4}), param("A_log", {4}), param("t.w", {4}),
               buffer("n", {4}, DType::kI64)}};
  world.policy.dtype = DType::kBF16;
  world.policy.subtree_dtypes = {{"t", std::nullopt}};
  world.pins = {{"A_log", model::PinStrength::kFloat16AndBFloat16}};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  ASSERT_EQ(plan->warnings.size(), 1U) << all_text(plan->warnings);
  const Error& warning = plan->warnings.front();
  EXPECT_EQ(warning.code, Code::kDType);
  EXPECT_EQ(warning.rule, "R23");
  EXPECT_EQ(warning.found, R"("a", "b")") << "neither the pinned one, nor what was asked for by subtree";
  EXPECT_NE(warning.message.find("2 tensors of the checkpoint are stored in F32, F64"), std::string::npos)
      << warning.message;
  world.policy.cast = policy::Cast::kExact;
  EXPECT_EQ(world.plan()->warnings.size(), 0U) << "they are rounded";
}

// transformers builds a model in the requested dtype, and loads what its constructor made in another one in that.
TEST(PlannerDtypes, R23_UnderExactTheConstructorsOwnDtypesHold) {
  World world{{{"a", {4}}, {"gate", {4}}, {"t.w", {4}}}, {param("a", {4}), param("gate", {4}), param("t.w", {4})}};
  world.policy.dtype = DType::kBF16;
  world.policy.cast = policy::Cast::kExact;
  world.policy.constructed_dtypes = {{"a", DType::kBF16}, {"gate", DType::kF32}, {"t.w", DType::kF64}};
  world.policy.subtree_dtypes = {{"t", DType::kF16}};
  EXPECT_EQ(dtypes(world, "a"), "BF16/BF16");
  EXPECT_EQ(dtypes(world, "gate"), "F32/F32");
  EXPECT_EQ(dtypes(world, "t.w"), "F64/F64") << "the name itself goes before its module";
  world.policy.subtree_dtypes = {{"t.w", DType::kF16}};
  EXPECT_EQ(dtypes(world, "t.w"), "F16/F16") << "the user's word about this tensor goes before the constructor's";
  world.policy.constructed_dtypes = {{"a", DType::kF32}, {"gate", DType::kF32}};
  EXPECT_EQ(dtypes(world, "gate"), "BF16/BF16") << "the model was not built in the requested dtype";
  world.policy.constructed_dtypes = {{"a", DType::kBF16}, {"gate", DType::kF64}};
  world.policy.cast = policy::Cast::kPromote;
  EXPECT_EQ(dtypes(world, "gate"), "F32/F32") << "only an exact request rounds";
}

// The request is F32. A quantized layer, its scale, and a norm that the request widens.
World quantized(int layers) {
  World world{{}, {}};
  world.policy.dtype = DType::kF32;
  const auto add = [&](std::string name, DType dtype) {
    world.keys.push_back({name, {4}, dtype});
    world.tensors.push_back(param(std::move(name), {4}, dtype));
  };
  for (int i = 0; i < layers; ++i) {
    add(fmt::format("m.{}.mlp.up.weight", i), DType::kF8E4M3);
    add(fmt::format("m.{}.mlp.up.scale", i), DType::kF32);
    add(fmt::format("m.{}.norm", i), DType::kBF16);
  }
  return world;
}

TEST(PlannerDtypes, R23_QuantizedTensorsAreOneErrorThatSaysWhatToWrite) {
  World world = quantized(2);
  auto plan = world.plan();
  ASSERT_EQ(verdict(plan), "R23 m.0.mlp.up.weight");
  EXPECT_NE(plan.error().front().message.find("2 quantized tensors"), std::string::npos);
  EXPECT_NE(plan.error().front().remedy.find(R"("subtree_dtypes": {"m.0.mlp": "auto", "m.1.mlp": "auto"})"),
            std::string::npos)
      << plan.error().front().remedy;
  world.policy.subtree_dtypes = {{"m.0.mlp", {}}, {"m.1.mlp", {}}};
  EXPECT_EQ(dtypes(world, "m.0.mlp.up.weight"), "F8_E4M3/F8_E4M3") << "what was said helps";
  EXPECT_EQ(dtypes(world, "m.0.norm"), "F32/F32") << "and changes nothing else";
}

TEST(PlannerDtypes, R23_TooManyQuantizedModulesAreAskedForTogether) {
  World world = quantized(9);
  auto plan = world.plan();
  ASSERT_EQ(verdict(plan), "R23 m.0.mlp.up.weight");
  EXPECT_NE(plan.error().front().remedy.find(R"("subtree_dtypes": {"m": "auto"})"), std::string::npos)
      << plan.error().front().remedy;
  EXPECT_NE(plan.error().front().remedy.find("all other tensors"), std::string::npos);
  world.policy.subtree_dtypes = {{"m", {}}};
  EXPECT_EQ(verdict(world), "accepted");
}

TEST(PlannerDtypes, R23_WhereNothingElseChangesTheWholeModelIsAuto) {
  World world = quantized(9);
  world.policy.dtype = DType::kBF16;
  auto plan = world.plan();
  ASSERT_FALSE(plan);
  EXPECT_NE(plan.error().front().remedy.find(R"(Set "dtype": "auto" to)"), std::string::npos)
      << plan.error().front().remedy;
  world.policy.dtype.reset();
  EXPECT_EQ(verdict(world), "accepted");
  world.policy.subtree_dtypes = {{"m.0", DType::kBF16}};  // an entry above this one would not be heard
  plan = world.plan();
  ASSERT_FALSE(plan);
  EXPECT_NE(plan.error().front().remedy.find(R"("subtree_dtypes": {"m.0": "auto"})"), std::string::npos)
      << plan.error().front().remedy;
}

TEST(PlannerDtypes, R27_AnFsdpUnitOfTwoDtypesIsRefused) {
  World world = mixed();
  world.mesh({{"dp", 2}}).place("proj", {shard(0, 0)}).place("A_log", {shard(0, 0)});
  for (auto& rule : world.layout.rules) rule.placement.fsdp_group = "layer";
  EXPECT_EQ(dtypes(world, "proj").rfind("refused: R27", 0), 0U) << dtypes(world, "proj");
  world.layout.rules[1].placement.fsdp_group = "layer.fp32";
  EXPECT_EQ(dtypes(world, "proj"), "BF16/BF16");
  world.layout.rules[1].placement.fsdp_group = "layer";
  world.tensors[1].requires_grad = false;
  EXPECT_EQ(dtypes(world, "proj"), "BF16/BF16") << "nobody casts, so frozen ones go with any unit";
}

// A unit of a projection that trains and a norm that is frozen, over dp.
World unit_of_two() {
  World world{{{"l.norm.w", {4, 6}}, {"l.proj.w", {4, 6}}},
              {param("l.norm.w", {4, 6}), trained(param("l.proj.w", {4, 6}))}};
  world.policy.compute_dtype = DType::kBF16;
  world.policy.compute_record = policy::ComputeRecord::kIgnore;
  world.mesh({{"dp", 2}, {"ep", 2}}).place("l.norm.w", {shard(0, 0)}).place("l.proj.w", {shard(0, 0)});
  for (auto& rule : world.layout.rules) rule.placement.fsdp_group = "l";
  return world;
}

TEST(PlannerDtypes, R27_APinnedFrozenParameterInABf16UnitIsRefusedByName) {
  World world = unit_of_two();
  EXPECT_EQ(dtypes(world, "l.norm.w"), "BF16/BF16") << "frozen ones may be stored otherwise";
  EXPECT_EQ(dtypes(world, "l.proj.w"), "F32/BF16");
  world.pins = {{"norm", model::PinStrength::kFloat16AndBFloat16}};
  EXPECT_EQ(verdict(world), "R27 l.norm.w") << "FSDP2 would gather it as BF16";
  world.layout.rules[0].placement.fsdp_group = "l.norm";
  EXPECT_EQ(dtypes(world, "l.norm.w"), "F32/F32");
}

TEST(PlannerDtypes, R27_AUnitIsOnOneSetOfAxesAndOneDevice) {
  World axes = unit_of_two();
  axes.layout.rules[1].placement.slots[0].cuts = {shard(1, 0)};
  EXPECT_EQ(verdict(axes), "R27 l.proj.w");
  axes.layout.rules[1].placement.slots[0].cuts = {};
  EXPECT_EQ(verdict(axes), "R27 l.proj.w") << "one is not sharded at all";
  axes.layout.rules[1].placement.slots[0].cuts = {shard(1, 0), shard(0, 0)};
  EXPECT_EQ(verdict(axes), "accepted") << "cut by ep, and then by dp like the other";
  World devices = unit_of_two();
  devices.cuda(4).layout.rules[1].placement.device = layout::DeviceRule::kCpu;
  EXPECT_EQ(verdict(devices), "R27 l.proj.w");
  for (auto& rule : devices.layout.rules) rule.placement.device = layout::DeviceRule::kCpu;
  EXPECT_EQ(verdict(devices), "accepted");
}

TEST(PlannerDtypes, R53_AUnitsOtherDimsAreCutEvenly) {
  World world = unit_of_two();
  world.mesh({{"dp", 4}});
  EXPECT_EQ(verdict(world), "accepted");
  world.layout.rules[0].placement.slots[0].cuts = {shard(0, 1)};
  EXPECT_EQ(verdict(world), "R53 l.norm.w") << "6 among 4";
  world.layout.rules[0].placement.fsdp_group = "";
  EXPECT_EQ(verdict(world), "accepted") << "not FSDP2's";
  World even = unit_of_two();
  even.layout.rules[0].placement.slots[0].cuts = {shard(0, 1)};
  const auto plan = even.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_TRUE(plan->find("l.norm.w")->placement.slots[0].cuts[0].even) << "the plan says so";
}

// The checker, and the slow one beside it, see for themselves.
TEST(PlannerDtypes, R27_TheCheckerRefusesUnitsThatFsdp2WouldNotTake) {
  const auto made = unit_of_two().plan();
  ASSERT_TRUE(made) << verdict(made);
  const auto refused_for = [&](const std::function<void(Statement & norm)>& change) {
    Plan plan = *made;
    change(plan.statements[0]);
    const auto checked = checker::check_plan(plan);
    EXPECT_EQ(checked.has_value(), checker::naive::is_good(plan));
    std::string rules;
    if (!checked) {
      for (const Error& error : checked.error()) rules += error.rule + " ";
    }
    return rules;
  };
  EXPECT_EQ(refused_for([](Statement&) {}), "");
  EXPECT_EQ(refused_for([](Statement& norm) { norm.compute = DType::kF32; }), "R27 ");
  EXPECT_EQ(refused_for([](Statement& norm) {
              norm.compute = DType::kF32;
              norm.placement.fsdp_group = "alone";
            }),
            "");
  EXPECT_EQ(refused_for([](Statement& norm) { norm.kind = Kind::kBuffer, norm.compute = DType::kF32; }), "");
  EXPECT_NE(refused_for([](Statement& norm) { norm.placement.slots[0].cuts[0].axes = {1}; }).find("R27"),
            std::string::npos);
  EXPECT_NE(refused_for([](Statement& norm) { norm.placement.slots[0].cuts.clear(); }).find("R27"), std::string::npos);
  EXPECT_NE(refused_for([](Statement& norm) { norm.placement.slots[0].cuts[0].dim = 1; }).find("R53"),
            std::string::npos);
}

TEST(PlannerDtypes, R28_AFrozenTowerIsCastAndATrainableOneIsNot) {
  World world{{{"vision.w", {4}}, {"vision.std_bias", {2}}, {"vision.scale", {2}}, {"text.w", {4}}, {"text.b", {2}}},
              {param("vision.w", {4}), buffer("vision.std_bias", {2}), buffer("vision.scale", {2}),
               trained(param("text.w", {4})), buffer("text.b", {2})}};
  world.policy.compute_dtype = DType::kBF16;
  world.pins = {{"vision.scale", model::PinStrength::kFloat16AndBFloat16}};
  EXPECT_EQ(dtypes(world, "vision.std_bias"), "BF16/BF16");
  EXPECT_EQ(dtypes(world, "vision.w"), "BF16/BF16");
  EXPECT_EQ(dtypes(world, "vision.scale"), "F32/F32") << "pinned";
  EXPECT_EQ(dtypes(world, "text.b"), "F32/F32");
  world.mesh({{"dp", 2}}).place("vision.w", {shard(0, 0)}).place("vision.std_bias", {shard(0, 0)});
  EXPECT_EQ(dtypes(world, "vision.w"), "BF16/BF16") << "decided when it is allocated, so no DTensor is cast in place";
  EXPECT_EQ(dtypes(world, "vision.std_bias"), "BF16/BF16");
  world.tensors[0] = allocated(world.tensors[0]);
  EXPECT_EQ(dtypes(world, "vision.w"), "F32/BF16") << "it stays, and FSDP2 casts it when it gathers";
}

TEST(PlannerDtypes, R28_AFrozenTowerHasOneComputeDtype) {
  World world{{{"t.a", {4}}, {"t.b", {4}, DType::kBF16}, {"t.c", {4}}, {"t.d", {4}, DType::kF16}, {"w", {4}}},
              {param("t.a", {4}), param("t.b", {4}), allocated(param("t.c", {4})), buffer("t.d", {4}),
               real(param("t.kept", {4})), trained(param("w", {4}))}};
  world.mesh({{"dp", 2}}).place("t.b", {shard(0, 0)}).place("t.c", {shard(0, 0)});
  world.policy.keep = {"t.kept"};
  for (const DType compute : {DType::kBF16, DType::kF32}) {
    world.policy.compute_dtype = compute;
    const auto plan = world.plan();
    ASSERT_TRUE(plan) << verdict(plan);
    for (const Statement& s : plan->statements) {
      if (s.name == "w") continue;
      EXPECT_EQ(s.compute, compute) << s.name;
    }
  }
}

TEST(PlannerDtypes, R29_WhatIsDerivedHasItsDeclaredDtype) {
  World world = mixed();
  world.tensors.push_back(derived(table("inv_freq", {2})));
  world.policy.dtype = DType::kBF16;
  world.policy.cast = policy::Cast::kExact;
  EXPECT_EQ(dtypes(world, "inv_freq"), "F32/F32");
  // zero.Init made it bf16; the derivation says what it should have been.
  world.tensors.back() = real(derived(table("inv_freq", {2}, DType::kBF16)));
  world.tensors.back().declared_dtype = DType::kF32;
  EXPECT_EQ(dtypes(world, "inv_freq"), "F32/F32");
  EXPECT_EQ(source_of(world, "inv_freq"), "host R6");
}

TEST(PlannerDtypes, R32_SubtreesAreAskedForByPrefix) {
  World world{{{"text.w", {2}, DType::kBF16}, {"vision.w", {2}, DType::kBF16}},
              {param("text.w", {2}), param("vision.w", {2})}};
  world.policy.dtype = DType::kF32;
  EXPECT_EQ(dtypes(world, "text.w"), "F32/F32");
  EXPECT_EQ(dtypes(world, "vision.w"), "F32/F32");
  world.policy.subtree_dtypes = {{"vision", DType::kBF16}};
  EXPECT_EQ(dtypes(world, "vision.w"), "BF16/BF16");
}

TEST(PlannerDtypes, R37_MemoryThatIsThereIsWrittenInPlaceOrRefused) {
  World world{{{"w", {15}, DType::kF32}}, {allocated(param("w", {15}, DType::kBF16), "cuda:0")}};
  world.mesh({{"dp", 2}}).place("w", {flat({0})});
  EXPECT_EQ(dtypes(world, "w"), "refused: R22 w") << "narrower than the contract asks";
  world.policy.cast = policy::Cast::kDestination;
  EXPECT_EQ(dtypes(world, "w"), "BF16/BF16");
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(find(*plan, 1, "w")->buffer_bytes, 16U) << "8 elements of the memory's own dtype, padding included";
  world.keys[0].dtype = DType::kBF16;
  world.tensors[0].dtype = DType::kF32;
  world.policy.cast = policy::Cast::kPromote;
  EXPECT_EQ(dtypes(world, "w"), "F32/F32") << "wider is no loss, and is not replaced";
}

TEST(PlannerDtypes, R7_R14_AKeptValueHasTheDtypeThatItHas) {
  World world{{{"w", {2}}}, {param("w", {2}), real(table("t", {2}, DType::kBF16))}};
  world.policy.dtype = DType::kF32;
  EXPECT_EQ(dtypes(world, "t"), "BF16/BF16");
  world.tensors.back() = real(param("t", {2}, DType::kBF16));
  world.keys.push_back({"t", {2}});
  world.policy.keep = {"t"};
  EXPECT_EQ(dtypes(world, "t"), "BF16/BF16") << "nobody writes to it, so nothing is too narrow";
}

TEST(PlannerDtypes, R28_R32_ASubtreeThatIsAskedForIsNotTheComputeDtypes) {
  World world{{{"m.w", {4}}, {"t.w", {4}}}, {trained(param("m.w", {4})), param("t.w", {4})}};
  world.policy.dtype = DType::kBF16;
  world.policy.compute_dtype = DType::kBF16;
  EXPECT_EQ(dtypes(world, "t.w"), "BF16/BF16") << "a frozen tower";
  world.policy.subtree_dtypes = {{"t", DType::kF32}};
  EXPECT_EQ(dtypes(world, "t.w"), "F32/F32") << "the user's word";
  world.policy.subtree_dtypes = {{"t", std::nullopt}};
  EXPECT_EQ(dtypes(world, "t.w"), "BF16/BF16") << "auto asks for nothing";
}

TEST(PlannerDtypes, R23_R28_ExactIsExactInAFrozenTower) {
  World world{{{"a.w", {4}}}, {param("a.w", {4})}};
  world.policy.dtype = DType::kF32;
  world.policy.compute_dtype = DType::kBF16;
  EXPECT_EQ(dtypes(world, "a.w"), "BF16/BF16");
  world.policy.cast = policy::Cast::kExact;
  EXPECT_EQ(dtypes(world, "a.w"), "F32/F32");
}

TEST(PlannerDtypes, R28_ACheckpointAloneIsNoFrozenTower) {
  const World world{{{"a.A_log", {4}}, {"a.n", {4}, DType::kI64}}, {}};
  const auto skeleton = skeleton_of(world.catalog());
  ASSERT_TRUE(skeleton);
  EXPECT_TRUE(skeleton->find("a.A_log")->requires_grad);
  EXPECT_FALSE(skeleton->find("a.n")->requires_grad) << "integers do not train";
  EXPECT_TRUE(skeleton->frozen_subtrees().empty());
}

}  // namespace
}  // namespace lading::planner
