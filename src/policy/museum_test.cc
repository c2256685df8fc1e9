// Bugs that other loaders had, in their smallest form (the museum's numbers).
#include <gtest/gtest.h>

#include <map>

#include "policy/policy.h"

namespace lading::policy {
namespace {

using model::Kind;
using model::PinStrength;
using model::Presence;
using model::Tensor;

struct Loaded {
  Tensor tensor;
  std::optional<DType> checkpoint;
};

Loaded loaded(std::string name, Kind kind, DType constructed, std::optional<DType> checkpoint) {
  Loaded made{{}, checkpoint};
  made.tensor.name = std::move(name);
  made.tensor.kind = kind;
  made.tensor.shape = Shape{4};
  made.tensor.dtype = constructed;
  return made;
}
Loaded trained(std::string name, DType checkpoint) {
  Loaded made = loaded(std::move(name), Kind::kParameter, DType::kF32, checkpoint);
  made.tensor.requires_grad = true;
  return made;
}

// Decides for a whole model, the way that a planner does: pins and frozen subtrees come from the skeleton.
std::map<std::string, DTypeDecision> decide(const Policy& policy, const std::vector<Loaded>& model,
                                            std::vector<model::Pin> model_pins = {}) {
  std::vector<Tensor> tensors;
  for (const Loaded& each : model) tensors.push_back(each.tensor);
  const auto skeleton = model::make_skeleton(std::move(tensors), {}, std::move(model_pins));
  EXPECT_TRUE(skeleton);
  const Pins pins(*skeleton, policy);
  std::map<std::string, DTypeDecision> decisions;
  for (const auto& [tensor, checkpoint] : model) {
    DTypeQuestion question{.name = tensor.name,
                           .kind = tensor.kind,
                           .constructed = tensor.dtype,
                           .presence = tensor.presence,
                           .checkpoint = checkpoint,
                           .pinned = pins.of(tensor.name),
                           .derived = tensor.derivation.has_value(),
                           .declared = tensor.declared_dtype,
                           .requires_grad = tensor.requires_grad};
    for (const std::string& subtree : skeleton->frozen_subtrees()) {
      question.frozen = question.frozen || model::is_beneath(tensor.name, subtree);
    }
    const auto decision = decide_dtype(policy, question);
    EXPECT_TRUE(decision) << decision.error().text();
    if (decision) decisions[tensor.name] = *decision;
  }
  return decisions;
}

// Automodel#2419: HF leaves a mixture of dtypes behind, and a frozen tower's F32 buffers promote activations.
TEST(Museum, Bug3_R22_R23_R28_MixedLoadAndFrozenBuffers) {
  const std::vector<Loaded> model = {trained("text.mixer.fp32.A_log", DType::kF32),
                                     trained("text.proj.weight", DType::kBF16),
                                     loaded("vision_tower.w", Kind::kParameter, DType::kF32, DType::kBF16),
                                     loaded("vision_tower.std_bias", Kind::kBuffer, DType::kF32, DType::kF32),
                                     loaded("text.layer_scalar", Kind::kBuffer, DType::kF32, DType::kF32)};
  Policy policy;
  policy.compute_dtype = DType::kBF16;
  auto automatic = decide(policy, model);
  EXPECT_EQ(automatic["text.proj.weight"].storage, DType::kBF16) << "as in the file, not as constructed";
  EXPECT_EQ(automatic["text.mixer.fp32.A_log"].storage, DType::kF32);
  EXPECT_EQ(automatic["vision_tower.std_bias"].storage, DType::kBF16);
  EXPECT_EQ(automatic["text.layer_scalar"].storage, DType::kF32);

  policy.dtype = DType::kF32;  // master weights
  auto masters = decide(policy, model);
  EXPECT_EQ(masters["text.proj.weight"].storage, DType::kF32);
  EXPECT_EQ(masters["text.proj.weight"].compute, DType::kBF16);
  EXPECT_EQ(masters["text.mixer.fp32.A_log"].compute, DType::kF32);

  // One FSDP2 unit over both would fail at the first forward; two units do.
  std::vector<GroupMember> members;
  for (const char* name : {"text.mixer.fp32.A_log", "text.proj.weight"}) {
    members.push_back({name, "text", masters[name].storage, masters[name].compute, true});
  }
  EXPECT_FALSE(check_groups(policy, members).empty());
  const auto units = propose_units(policy, {}, members);
  ASSERT_TRUE(units);
  EXPECT_EQ(units->size(), 2U);
}

// DeepSpeed#4932, #8066: zero.Init rounds what a constructor makes, RoPE tables too.
TEST(Museum, Bug29_R29_ZeroInitDoesNotDegradeRope) {
  Loaded rope = loaded("rope.inv_freq", Kind::kNonPersistentBuffer, DType::kBF16, {});
  rope.tensor.presence = Presence::kReal;
  rope.tensor.device = "cpu";
  rope.tensor.derivation = model::Recipe{.kind = model::RecipeKind::kHost};
  rope.tensor.declared_dtype = DType::kF32;
  Loaded weight = trained("w", DType::kF32);
  weight.tensor.dtype = DType::kBF16;
  weight.tensor.presence = Presence::kEmpty;
  weight.tensor.device = "cpu";
  Policy policy;
  policy.cast = Cast::kDestination;  // what one says for partitions that are BF16
  auto decisions = decide(policy, {rope, weight});
  EXPECT_EQ(decisions["w"].storage, DType::kBF16);
  EXPECT_EQ(decisions["rope.inv_freq"].storage, DType::kF32);
  EXPECT_EQ(decisions["rope.inv_freq"].storage_rule, "R29");
}

// transformers#25681, gpt-neox#1003: positions collapse when model.half() reaches the tables.
TEST(Museum, Bug30_R29_RopeIsNeverHalf) {
  Loaded rope = loaded("rope.inv_freq", Kind::kNonPersistentBuffer, DType::kF32, {});
  rope.tensor.derivation = model::Recipe{.kind = model::RecipeKind::kHost};
  Loaded frozen_weight = loaded("rope.w", Kind::kParameter, DType::kF32, DType::kF32);
  for (const DType half : {DType::kF16, DType::kBF16}) {
    Policy policy;
    policy.dtype = half;
    policy.cast = Cast::kExact;
    policy.compute_dtype = half;
    auto decisions = decide(policy, {rope, frozen_weight});  // a frozen subtree, so that R28 tries too
    EXPECT_EQ(decisions["rope.w"].storage, half);
    EXPECT_EQ(decisions["rope.inv_freq"].storage, DType::kF32);
    EXPECT_EQ(decisions["rope.inv_freq"].compute, DType::kF32);
  }
}

// Automodel#3327: one bf16 sibling made the layer's fp32 masters compute in fp32.
TEST(Museum, Bug31_R26_ASiblingDoesNotFlipTheMasters) {
  std::vector<Loaded> model = {loaded("l.q.weight", Kind::kParameter, DType::kF32, {}),
                               loaded("l.k.weight", Kind::kParameter, DType::kF32, {}),
                               loaded("l.m.A_log", Kind::kParameter, DType::kF32, {})};
  for (Loaded& each : model) each.tensor.requires_grad = true;
  Policy policy;
  policy.compute_dtype = DType::kBF16;
  const std::vector<model::Pin> pins = {{"A_log", PinStrength::kFloat16AndBFloat16}};
  auto alone = decide(policy, model, pins);
  Loaded gate = loaded("l.shared_expert_gate.weight", Kind::kParameter, DType::kBF16, {});
  gate.tensor.requires_grad = true;
  model.push_back(gate);
  auto together = decide(policy, model, pins);
  for (const char* name : {"l.q.weight", "l.k.weight"}) {
    EXPECT_EQ(alone[name].compute, DType::kBF16);
    EXPECT_EQ(together[name].compute, DType::kBF16);
    EXPECT_EQ(together[name].storage, DType::kF32);
  }
  EXPECT_EQ(together["l.shared_expert_gate.weight"].compute, DType::kBF16);
  EXPECT_EQ(together["l.m.A_log"].compute, DType::kF32);

  // The same with records: each has its own, or none.
  for (const ComputeRecord record : {ComputeRecord::kCheckpoint, ComputeRecord::kIgnore}) {
    policy.compute_record = record;
    const std::vector<Loaded> file = {trained("l.q.weight", DType::kF32), trained("l.k.weight", DType::kF32),
                                      trained("l.m.A_log", DType::kF32)};
    std::vector<Loaded> file_with_gate = file;
    file_with_gate.push_back(trained("l.shared_expert_gate.weight", DType::kBF16));
    auto without = decide(policy, file, pins);
    auto with = decide(policy, file_with_gate, pins);
    for (const auto& [name, decision] : without) EXPECT_EQ(with[name].compute, decision.compute) << name;
    const bool ignored = record == ComputeRecord::kIgnore;
    EXPECT_EQ(with["l.q.weight"].compute, ignored ? DType::kBF16 : DType::kF32);
    EXPECT_EQ(with["l.shared_expert_gate.weight"].compute, DType::kBF16);
    EXPECT_EQ(with["l.m.A_log"].compute, DType::kF32);
  }
}

// Automodel#1896: fp32 masters were asked for, and towers with a config of their own stayed bf16.
TEST(Museum, Bug32_R22_R32_MastersAreNotSilentlyBf16) {
  Policy policy;
  policy.dtype = DType::kF32;
  policy.compute_dtype = DType::kBF16;
  auto decisions = decide(policy, {trained("text.w", DType::kBF16), trained("vision.tower.w", DType::kBF16),
                                   trained("audio.w", DType::kBF16)});
  ASSERT_EQ(decisions.size(), 3U);
  for (const auto& [name, decision] : decisions) {
    EXPECT_EQ(decision.storage, DType::kF32) << name;
    EXPECT_EQ(decision.compute, DType::kBF16) << name;
  }
  // And memory that is bf16 already is an error, not a silent master.
  const DTypeQuestion fixed{.name = "w",
                            .constructed = DType::kBF16,
                            .presence = Presence::kReal,
                            .checkpoint = DType::kBF16,
                            .requires_grad = true};
  EXPECT_FALSE(decide_dtype(policy, fixed));
}

}  // namespace
}  // namespace lading::policy
