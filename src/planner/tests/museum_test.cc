// Bugs that other loaders had, rebuilt in their smallest form for the planner (docs/how-it-works/museum.md lists them
// all, and which need more than a plan). Numbers are the museum's; sources and placements here, dtypes in policy/.
#include <gtest/gtest.h>

#include "layout/strategy.h"
#include "support/planner_support.h"

namespace lading::planner {
namespace {

using namespace world;  // NOLINT(google-build-using-namespace): the tests' own words
using layout::Strategy;
using mapping::Expression;

// The world's tensors under a strategy of the command line.
World under(World world, Strategy strategy, std::vector<layout::Axis> axes) {
  world.mesh(std::move(axes)).cuda(8);
  std::vector<layout::TensorToPlace> infos;
  for (const Tensor& t : world.tensors) infos.push_back({t.name, t.shape, t.kind == Kind::kParameter});
  auto made = layout::make_layout({strategy, world.layout.mesh, world.layout.devices, {}}, infos);
  LADING_CHECK(made.has_value());
  world.layout = made->layout;
  return world;
}

const World kGemma = {{{"w", {4, 2}}, {"input_max", {}}, {"output_min", {}}, {"layer_scalar", {1}}},
                      {param("w", {4, 2}), buffer("input_max", {}), buffer("output_min", {}),
                       buffer("layer_scalar", {1}), derived(table("rope.inv_freq", {2}))}};

// Automodel#2146: buffers stayed on the CPU, because model.to() was skipped.
TEST(PlanMuseum, Museum01_R8_R35_BuffersAreOnTheRanksDevice) {
  World world = kGemma;
  world.tensors.push_back(real(table("embed_scale", {}), "cpu"));
  const auto plan = under(world, Strategy::kFsdp2, {{"dp", 1}}).plan();
  ASSERT_TRUE(plan) << verdict(plan);
  for (const Destination& d : plan->ranks[0].destinations) EXPECT_EQ(d.device, "cuda:0");
  EXPECT_EQ(plan->find("embed_scale")->kept_device, "cpu") << "so the executor knows that it must move";
}

// transformers#45402: ZeRO-3 loaded parameters only, and told of no unexpected key.
TEST(PlanMuseum, Museum02_R4_R5_R38_Zero3LoadsBuffersEverywhere) {
  World world = under(kGemma, Strategy::kZero3, {{"dp", 2}});
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  for (const std::uint64_t rank : {0U, 1U}) {
    for (const char* name : {"input_max", "output_min", "layer_scalar"})
      EXPECT_EQ(held(*plan, rank, name), std::string(name) + ":0") << rank;
  }
  world.keys.push_back({"dropped", {3}});
  EXPECT_EQ(verdict(world), "R39 dropped");
}

// transformers#44473: ranks above 0 initialised again, and left non-persistent buffers as they were.
TEST(PlanMuseum, Museum04_R6_R12_EveryRankHasTheSameSources) {
  World world = kGemma;
  world.tensors[0] = init(world.tensors[0], normal(1));
  const auto plan = under(world, Strategy::kFsdp2, {{"dp", 4}}).plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(source_of(plan, "w"), "file R38");
  EXPECT_EQ(source_of(plan, "rope.inv_freq"), "host R6");
  for (const RankPlan& rank : plan->ranks) EXPECT_EQ(rank.destinations.size(), 5U);
}

// speculators#314, #333: norms without reset_parameters stayed garbage, and a reset would have lost the verifier.
TEST(PlanMuseum, Museum05_R13_R14_R34_TheVerifierIsKeptAndNormsNeedARecipe) {
  World world{{{"layers.w", {2}}},
              {param("layers.w", {2}), real(param("verifier.embed", {4})), param("norm.weight", {2})}};
  world.policy.keep = {"verifier.*"};
  world.policy.allow_missing = {"norm.weight"};
  EXPECT_EQ(verdict(world), "R13 norm.weight");
  world.tensors.back() = init(world.tensors.back(), fill(1));
  world.mesh({{"dp", 2}}).cuda(2).place("layers.w", {shard(0, 0)});
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(source_of(plan, "verifier.embed"), "kept R14");
  EXPECT_EQ(source_of(plan, "norm.weight"), "fill R12");
  EXPECT_EQ(device_of(*plan, 1, "verifier.embed"), "cuda:1");
}

// transformers#45649: the fix of another bug made every rank hold the whole model.
TEST(PlanMuseum, Museum07_R64_ARankCommitsItsShareAndNoMore) {
  World world{{{"w", {1024, 512}, DType::kBF16}}, {param("w", {1024, 512}, DType::kBF16)}};
  const auto plan = under(world, Strategy::kFsdp2, {{"dp", 8}}).plan();
  ASSERT_TRUE(plan) << verdict(plan);
  for (const RankPlan& rank : plan->ranks) {
    EXPECT_EQ(rank.owned_bytes, 128U * 512 * 2);
    EXPECT_EQ(rank.read_bytes, 128U * 512 * 2);
    EXPECT_LE(8 * rank.staging_bytes, world.policy.budget_bytes);
  }
}

// transformers#45902, lmms-engine#185, LlamaFactory#10820, unsloth-zoo#363, prime-rl#937: a table that no file
// holds, on meta or emptied. Each is refused by name, or derived on all ranks.
TEST(PlanMuseum, Museum08_Museum10_Museum11_Museum14_R2_R6_TablesWithoutASourceAreRefused) {
  for (const char* name : {"rotary_emb.inv_freq", "embed_scale", "softcap"}) {
    for (const bool emptied : {false, true}) {
      World world = kGemma;
      world.tensors.push_back(emptied ? allocated(table(name, {2})) : table(name, {2}));
      world = under(world, Strategy::kFsdp2, {{"dp", 2}});
      EXPECT_EQ(verdict(world), std::string("R6 ") + name);
      for (Tensor& t : world.tensors) {
        if (t.name == name) t = derived(t);
      }
      const auto plan = world.plan();
      ASSERT_TRUE(plan) << verdict(plan);
      EXPECT_NE(find(*plan, 1, name), nullptr) << "on ranks above 0 too";
    }
  }
}

// SkyRL#1725: memory in bf16 received the bytes of fp32.
TEST(PlanMuseum, Museum09_R23_BytesAreCastOnTheRankThatReadsThem) {
  World world{{{"scale", {4}}}, {allocated(buffer("scale", {4}, DType::kBF16))}};
  world.mesh({{"dp", 2}});
  EXPECT_EQ(verdict(world), "R22 scale") << "it would lose bits, and nobody asked for that";
  world.policy.cast = policy::Cast::kDestination;
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  for (const std::uint64_t rank : {0U, 1U}) {
    EXPECT_EQ(find(*plan, rank, "scale")->buffer_bytes, 8U);
    EXPECT_EQ(held(*plan, rank, "scale"), of("scale", {0, 1, 2, 3}));
  }
}

// transformers#34234: to_empty destroyed buffers that were real.
TEST(PlanMuseum, Museum12_R7_ARealBufferIsKept) {
  World world = kGemma;
  world.tensors.back() = real(table("rope.inv_freq", {2}), "cuda:0");
  const auto plan = under(world, Strategy::kZero3, {{"dp", 2}}).plan();
  EXPECT_EQ(source_of(plan, "rope.inv_freq"), "kept R7");
}

// accelerate#3898, #4023: a buffer has no device_mesh.
TEST(PlanMuseum, Museum13_R4_PlainBuffersBesideShardedParameters) {
  const auto plan = under(kGemma, Strategy::kFsdp2, {{"dp", 2}}).plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(held(*plan, 1, "w"), of("w", {4, 5, 6, 7}));
  EXPECT_EQ(held(*plan, 1, "layer_scalar"), "layer_scalar:0");
  EXPECT_TRUE(plan->find("layer_scalar")->placement.slots[0].cuts.empty());
}

World tied_with_w(std::vector<Key> keys) {
  return {std::move(keys), {param("embed", {4, 2}), param("head", {4, 2}), param("w", {2})}, {{"embed", "head"}}};
}

// accelerate#3154, verl#7835, prime-rl#937: to_empty untied, under FSDP1 and others; and the memory doubled.
TEST(PlanMuseum, Museum15_Museum16_Museum17_R49_R64_ATieIsOneMemory) {
  World world = tied_with_w({{"embed", {4, 2}}, {"w", {2}}});
  world.mesh({{"dp", 2}}).place("w", {flat_parameter(0, "u", 8, 10)}).place("*", {flat_parameter(0, "u", 0, 10)});
  auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(find(*plan, 0, "embed"), find(*plan, 0, "head"));
  EXPECT_EQ(rank_of(*plan, 0)->owned_bytes, 20U) << "half of 8 + 2 elements";
  world.tensors.push_back(derived(table("rope", {2})));
  plan = under(world, Strategy::kFsdp2, {{"dp", 2}}).plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(find(*plan, 1, "embed"), find(*plan, 1, "head"));
  EXPECT_EQ(source_of(plan, "rope"), "host R6");
}

// accelerate#4171, torchtitan#2522: a tied parameter in two FSDP2 units fails at the first forward.
TEST(PlanMuseum, Museum18_R52_ATieInTwoUnitsIsRefused) {
  World world = tied_with_w({{"embed", {4, 2}}, {"w", {2}}});
  world.mesh({{"dp", 2}}).place("embed", {shard(0, 0)}).place("head", {shard(0, 0)});
  world.layout.rules[0].placement.fsdp_group = "embed";
  world.layout.rules[1].placement.fsdp_group = "head";
  EXPECT_EQ(verdict(world), "R52 embed");
}

// Automodel#1489: moving tied shards put 128256 rows into 64128.
TEST(PlanMuseum, Museum19_R35_R37_TiedShardsAreWrittenWhereTheyAre) {
  World world = tied_with_w({{"embed", {4, 2}}, {"w", {2}}});
  for (Tensor& t : world.tensors) t = allocated(t, "cuda:0");
  const auto plan = under(world, Strategy::kTp, {{"tp", 2}}).plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(find(*plan, 1, "head")->buffer_bytes, 16U) << "half the rows, never all of them";
  EXPECT_EQ(device_of(*plan, 1, "head"), "cuda:1");
  EXPECT_EQ(held(*plan, 1, "head"), of("embed", {4, 5, 6, 7}));
}

// transformers#46620, #45591: loaded weights were initialised once more, and the report was clean.
TEST(PlanMuseum, Museum20_Museum21_R12_NothingThatIsLoadedIsInitialised) {
  World world{{{"dt_bias", {4}}, {"out_proj.weight", {2, 2}}},
              {init(param("dt_bias", {4}), normal(1)), init(param("out_proj.weight", {2, 2}), normal(1)),
               init(param("fresh", {2}), fill(1))}};
  world.policy.allow_missing = {"*"};
  const auto plan = world.plan();
  ASSERT_TRUE(plan) << verdict(plan);
  EXPECT_EQ(source_of(plan, "dt_bias"), "file R38");
  EXPECT_EQ(source_of(plan, "out_proj.weight"), "file R38");
  EXPECT_EQ(source_of(plan, "fresh"), "fill R12");
}

// transformers#28244: under ZeRO-3 tensors look empty, and initialising those does nothing.
TEST(PlanMuseum, Museum22_R13_InitKnowsTheGlobalShape) {
  World world{{{"w", {2}}}, {param("w", {2}), init(param("head", {3, 5}), normal(0.02))}};
  world.policy.allow_missing = {"head"};
  const auto plan = under(world, Strategy::kZero3, {{"dp", 4}}).plan();
  ASSERT_TRUE(plan) << verdict(plan);
  std::uint64_t elems = 0;
  for (const RankPlan& rank : plan->ranks) elems += find(*plan, rank.rank, "head")->owned_elems;
  EXPECT_EQ(elems, 15U);
  EXPECT_EQ(source_of(plan, "head"), "random R12");
}

// transformers#28122: a head of another shape was left at 1e37.
TEST(PlanMuseum, Museum23_R21_AnAllowedMismatchNeedsARecipe) {
  World world{{{"w", {2}}, {"head", {5}}}, {param("w", {2}), param("head", {3})}};
  EXPECT_EQ(verdict(world), "R41 head");
  world.policy.allow_mismatch = {"head"};
  EXPECT_EQ(verdict(world), "R13 head");
  world.tensors.back() = init(world.tensors.back(), normal(0.02));
  EXPECT_EQ(source_of(world, "head"), "random R21");
}

// Automodel#1527, llm-foundry#1745: initialising by module class missed the norms.
TEST(PlanMuseum, Museum24_R13_EachTensorWithoutARecipeIsNamed) {
  World world{{{"w", {2}}}, {param("w", {2}), param("q_norm.weight", {2}), param("k_norm.weight", {2})}};
  world.policy.allow_missing = {"*norm*"};
  EXPECT_EQ(verdict(world), "R13 k_norm.weight; R13 q_norm.weight");
}

// pytorch#168058, torchtitan#3106, OLMo-core#319, composer#2812: the random numbers depended on the layout, were
// equal on all shards under offload, and differed between replicas. A plan says the elements, not the numbers.
TEST(PlanMuseum, Museum25_Museum26_Museum27_R16_R17_ARandomTensorIsTheSameUnderEveryLayout) {
  World world{{{"w", {2}}}, {param("w", {2}), init(param("h", {4, 4}), normal(0.02))}};
  world.policy.allow_missing = {"h"};
  world.policy.seed = 5;
  for (const std::size_t dim : {0U, 1U}) {
    World cut = world;
    cut.mesh({{"replicate", 2}, {"shard", 2}}).cuda(4).place("h", {shard(1, dim)});
    cut.layout.rules[0].placement.device = layout::DeviceRule::kCpu;
    const auto plan = cut.plan();
    ASSERT_TRUE(plan) << verdict(plan);
    EXPECT_EQ(plan->find("h")->recipe, *world.tensors[1].init);
    EXPECT_EQ(plan->find("h")->placement.slots[0].cuts[0].dim, dim) << "the region says which elements to draw";
    EXPECT_EQ(plan->seed, 5U);
    for (const RankPlan& rank : plan->ranks) {
      EXPECT_EQ(find(*plan, rank.rank, "h")->owned_elems, 8U);
      EXPECT_EQ(device_of(*plan, rank.rank, "h"), "cpu");
    }
  }
}

// pytorch#178569: HSDP broadcast buffers in the wrong order, then not at all.
TEST(PlanMuseum, Museum28_R5_R17_ReplicasReadTheirBuffersThemselves) {
  const auto plan = under(kGemma, Strategy::kHsdp, {{"replicate", 2}, {"shard", 2}}).plan();
  ASSERT_TRUE(plan) << verdict(plan);
  for (const RankPlan& rank : plan->ranks) {
    for (const char* name : {"input_max", "output_min"})
      EXPECT_EQ(find(*plan, rank.rank, name)->transfers, find(*plan, 0, name)->transfers);
  }
}

}  // namespace
}  // namespace lading::planner
