// Where values come from: one source per tensor, chosen in a fixed order. The user's word, the file, a tie, a
// derivation, the value that is there, an initial value.
#include <gtest/gtest.h>

#include "support/planner_support.h"

namespace lading::planner {
namespace {

using namespace world;  // NOLINT(google-build-using-namespace): the tests' own words

// A tensor that offers everything at once.
Tensor with_all(Tensor t) { return real(derived(init(std::move(t), fill(1)))); }

TEST(PlannerSources, R12_R14_PrecedenceFromTheUsersWordDownToInit) {
  const std::vector<Key> key = {{"t", {2}}};
  World external = with(with_all(param("t", {2})), key);
  external.policy.external = {"t"};
  EXPECT_EQ(source_of(external, "t"), "host R14");
  World keep = with(with_all(param("t", {2})), key);
  keep.policy.keep = {"t"};
  EXPECT_EQ(source_of(keep, "t"), "kept R14");
  EXPECT_EQ(source_of(with(with_all(param("t", {2})), key), "t"), "file R38");

  World none = with(with_all(param("t", {2})));
  none.policy.allow_missing = {"t"};
  EXPECT_EQ(source_of(none, "t"), "host R6") << "a derivation before the value that is there";
  none.tensors.back() = real(init(param("t", {2}), fill(1)));
  EXPECT_EQ(source_of(none, "t"), "kept R7") << "the value that is there before an initial one";
  none.tensors.back() = init(param("t", {2}), fill(1));
  EXPECT_EQ(source_of(none, "t"), "fill R12");
  none.tensors.back() = init(param("t", {2}), normal(0.02));
  EXPECT_EQ(source_of(none, "t"), "random R12");
}

TEST(PlannerSources, R12_TheFileBeatsInitAndTheBytesAreItsOwn) {
  const auto plan = with(init(param("t", {3}), normal(1)), {{"t", {3}}}).plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(source_of(plan, "t"), "file R38");
  EXPECT_EQ(held(*plan, 0, "t"), "t:0 t:1 t:2");
}

TEST(PlannerSources, R14_KeepNeedsAValueAndReadsNoByteOfTheFile) {
  World world = with(real(param("t", {2}), "cpu"), {{"t", {2}}});
  world.policy.keep = {"t"};
  const auto plan = world.cuda(1).plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(held(*plan, 0, "t"), ". .");
  EXPECT_EQ(plan->find("t")->kept_device, "cpu");
  EXPECT_EQ(device_of(*plan, 0, "t"), "cuda:0") << "kept, and moved to where it belongs";
  for (const Source& source : plan->sources) EXPECT_NE(source.key, "t");

  world.tensors.back() = param("t", {2});
  EXPECT_EQ(verdict(world), "R14 t") << "nothing there to keep";
  world.tensors.back() = allocated(param("t", {2}));
  EXPECT_EQ(verdict(world), "R14 t") << "memory without a value is no value";
}

TEST(PlannerSources, R14_KeepAndExternalMayUseStarsAndMustMatch) {
  World world = with(real(param("verifier.embed", {2})));
  world.policy.keep = {"verifier.*"};
  EXPECT_EQ(source_of(world, "verifier.embed"), "kept R14");
  world.policy.keep = {"verifier.*", "verifer.*"};
  EXPECT_EQ(verdict(world), "R43");
  world.policy.keep = {"verifier.*"};
  world.policy.external = {"nothing"};
  EXPECT_EQ(verdict(world), "R43");
}

TEST(PlannerSources, R14_AnAssignedValueIsKeptWithoutAWord) {
  Tensor t = real(param("t", {2}));
  t.assigned = true;
  EXPECT_EQ(source_of(with(t), "t"), "kept R14");
  EXPECT_EQ(source_of(with(t, {{"t", {2}}}), "t"), "file R38") << "a file that has it wins";
  World tied{{{"w", {2}}}, {param("w", {2}), t, param("u", {2})}};
  tied.ties = {{"t", "u"}};
  EXPECT_EQ(source_of(tied, "t"), "kept R14") << "its tie has the value too";
  t.presence = model::Presence::kEmpty;
  EXPECT_EQ(verdict(with(t)), "R14 t") << "memory without a value was not assigned";
}

TEST(PlannerSources, R12_R39_WithoutACheckpointNoKeyIsMissing) {
  World world{{}, {init(param("a", {2}), normal(0.02)), init(buffer("b", {2}), fill(3)), real(param("c", {2}))}};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(source_of(plan, "a"), "random R12");
  EXPECT_EQ(source_of(plan, "b"), "fill R12");
  EXPECT_EQ(source_of(plan, "c"), "kept R7");
  world.tensors.push_back(param("d", {2}));
  EXPECT_EQ(verdict(world), "R13 d") << "but every tensor needs a value";
}

TEST(PlannerSources, R39_R40_ARealValueDoesNotHideAMissingPersistentKey) {
  EXPECT_EQ(verdict(with(real(param("t", {2})))), "R39 t");
  EXPECT_EQ(verdict(with(real(buffer("t", {2})))), "R39 t");
  EXPECT_EQ(verdict(with(real(init(param("t", {2}), fill(0))))), "R39 t") << "nor does a recipe";
  EXPECT_EQ(verdict(with(allocated(param("t", {2})))), "R39 t");
  World keep = with(real(param("t", {2})));
  keep.policy.keep = {"t"};
  EXPECT_EQ(source_of(keep, "t"), "kept R14");
}

TEST(PlannerSources, R39_MissingIsAllowedOnlyWhereSomethingCoversIt) {
  World world = with(param("t", {2}));
  world.policy.allow_missing = {"t"};
  EXPECT_EQ(verdict(world), "R13 t") << "allowed, but nothing says what it is";
  world.tensors.back() = allocated(param("t", {2}));
  EXPECT_EQ(verdict(world), "R13 t") << "memory without a value is no source";
}

TEST(PlannerSources, R2_R6_NonPersistentBuffers) {
  EXPECT_EQ(source_of(with(derived(table("t", {2}))), "t"), "host R6");
  EXPECT_EQ(source_of(with(real(table("t", {2}))), "t"), "kept R7");
  EXPECT_EQ(source_of(with(real(derived(table("t", {2})))), "t"), "host R6") << "R29: what is there may be rounded";
  EXPECT_EQ(source_of(with(init(table("t", {2}), fill(50))), "t"), "fill R12");
  EXPECT_EQ(verdict(with(table("softcap", {}))), "R6 softcap");
  EXPECT_EQ(verdict(with(allocated(table("softcap", {})))), "R6 softcap") << "what to_empty leaves behind";
}

TEST(PlannerSources, R6_R13_TheErrorNamesTheTensorAndTheRemedy) {
  for (const Tensor& t : {table("softcap", {}), adapter(param("softcap", {2}))}) {
    const auto plan = with(t).plan();
    ASSERT_FALSE(plan);
    const Error& error = plan.error().front();
    EXPECT_EQ(error.tensor, "softcap");
    EXPECT_NE(error.remedy.find("recipe"), std::string::npos) << error.remedy;
    EXPECT_NE(error.message.find(t.kind == Kind::kParameter ? "parameter" : "non-persistent"), std::string::npos);
  }
}

TEST(PlannerSources, R7_AKeptValueIsNeitherReadNorFilledUnderAnyLayout) {
  World world = with(real(table("inv_freq", {4}), "cuda:1"));
  const auto plan = world.mesh({{"dp", 2}}).place("w", {flat({0})}).cuda(2).plan();
  ASSERT_TRUE(plan) << verdict(plan);
  for (const std::uint64_t rank : {0U, 1U}) {
    EXPECT_EQ(held(*plan, rank, "inv_freq"), ". . . .");
    EXPECT_TRUE(find(*plan, rank, "inv_freq")->transfers.empty());
  }
  EXPECT_EQ(plan->find("inv_freq")->kept_device, "cuda:1");
}

TEST(PlannerSources, R1_R10_ExtraStateAndAttributes) {
  const Tensor state = tensor(Kind::kExtraState, "t._extra_state", {6}, DType::kU8);
  const auto restored = with(state, {{"t._extra_state", {6}, DType::kU8}}).plan();
  ASSERT_TRUE(restored) << verdict(restored);
  EXPECT_EQ(held(*restored, 0, "t._extra_state"), of("t._extra_state", {0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(verdict(with(state)), "R39 t._extra_state") << "dropped data is an error";
  World keep = with(real(state));
  EXPECT_EQ(verdict(keep), "R39 t._extra_state") << "kept only if somebody says so";
  keep.policy.keep = {"*._extra_state"};
  EXPECT_EQ(source_of(keep, "t._extra_state"), "kept R14");

  const Tensor attribute = tensor(Kind::kAttribute, "padding", {2});
  EXPECT_EQ(source_of(with(real(attribute)), "padding"), "kept R7");
  EXPECT_EQ(source_of(with(derived(attribute)), "padding"), "host R6");
  EXPECT_EQ(verdict(with(attribute)), "R6 padding");
}

TEST(PlannerSources, R10_AKeyForABiasThatIsNoneIsUnexpected) {
  EXPECT_EQ(verdict(World{{{"l.weight", {2}}, {"l.bias", {2}}}, {param("l.weight", {2})}}), "R39 l.bias");
}

TEST(PlannerSources, R21_AnAllowedMismatchIsInitialised) {
  World world = with(init(param("head", {3}), normal(0.02)), {{"head", {5}}});
  EXPECT_EQ(verdict(world), "R41 head");
  world.policy.allow_mismatch = {"head"};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(source_of(plan, "head"), "random R21");
  EXPECT_EQ(held(*plan, 0, "head"), ". . .") << "not one byte of the other shape";
  world.tensors.back() = param("head", {3});
  EXPECT_EQ(verdict(world), "R13 head") << "allowed, but there is no recipe";
}

TEST(PlannerSources, R65_AdaptersAreInitialisedNeverMissing) {
  World world{{{"q.weight", {4, 4}}},
              {param("q.base_layer.weight", {4, 4}), adapter(init(param("q.lora_A.default.weight", {2, 4}), normal(1))),
               adapter(init(param("q.lora_B.default.weight", {4, 2}), fill(0)))}};
  world.mapping.rules = {mapping::Rule::rename_pattern("peft", R"((.*)\.weight)", R"(\1.base_layer.weight)")};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(source_of(plan, "q.base_layer.weight"), "file R38");
  EXPECT_EQ(plan->find("q.base_layer.weight")->mapping_rule, "peft");
  EXPECT_EQ(source_of(plan, "q.lora_A.default.weight"), "random R12");
  EXPECT_EQ(source_of(plan, "q.lora_B.default.weight"), "fill R12");
  EXPECT_EQ(plan->find("q.lora_B.default.weight")->recipe.value, 0);
}

TEST(PlannerSources, R13_R65_AnAdapterWithoutARecipeIsAnErrorAndAFileBeatsIt) {
  EXPECT_EQ(verdict(with(adapter(param("lora_A", {2})))), "R13 lora_A");
  EXPECT_EQ(source_of(with(adapter(init(param("lora_A", {2}), normal(1))), {{"lora_A", {2}}}), "lora_A"), "file R38");
}

TEST(PlannerSources, R20_TheZeroRowAndTheConstantsStayInTheStatement) {
  model::Recipe embedding = normal(0.02);
  embedding.zero_row = 9;
  World world = with(init(param("embed", {10, 4}), embedding));
  world.policy.allow_missing = {"embed"};
  world.policy.seed = 17;
  const auto plan = world.mesh({{"dp", 4}}).place("embed", {shard(0, 0)}).plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(plan->find("embed")->recipe.zero_row, 9U) << "a row of the whole tensor: its owner is the last rank";
  EXPECT_EQ(plan->seed, 17U);
  // ceil(10/4) = 3 rows of 4.
  for (const auto& [rank, elems] : std::map<std::uint64_t, std::uint64_t>{{0, 12}, {1, 12}, {2, 12}, {3, 4}})
    EXPECT_EQ(find(*plan, rank, "embed")->owned_elems, elems);
}

}  // namespace
}  // namespace lading::planner
