#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/skeleton.h"

namespace lading::model {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Tensor tensor(std::string name, Kind kind) {
  Tensor made;
  made.name = std::move(name);
  made.kind = kind;
  made.shape = Shape{2};
  return made;
}
Tensor frozen(std::string name) { return tensor(std::move(name), Kind::kParameter); }
Tensor buffer(std::string name) { return tensor(std::move(name), Kind::kBuffer); }
Tensor trainable(std::string name) {
  Tensor made = frozen(std::move(name));
  made.requires_grad = true;
  return made;
}

std::vector<std::string> subtrees(std::vector<Tensor> tensors, std::vector<std::vector<std::string>> ties = {}) {
  const auto skeleton = make_skeleton(std::move(tensors), std::move(ties), {});
  return skeleton ? skeleton->frozen_subtrees() : std::vector<std::string>{"refused"};
}

TEST(FrozenSubtrees, R28_OnlyTheOutermost) {
  EXPECT_THAT(subtrees({frozen("tower.layers.0.w"), frozen("tower.layers.1.w"), buffer("tower.std_bias"),
                        trainable("text.layers.0.w"), frozen("text.layers.0.norm.w")}),
              ElementsAre("text.layers.0.norm", "tower"));
}

TEST(FrozenSubtrees, R28_TheWholeModelIsTheEmptyName) {
  EXPECT_THAT(subtrees({frozen("a.w"), frozen("b.w")}), ElementsAre(""));
  EXPECT_THAT(subtrees({frozen("w")}), ElementsAre(""));
}

TEST(FrozenSubtrees, R28_AModuleWithoutParametersIsNotFrozen) {
  EXPECT_THAT(subtrees({buffer("rope.table"), trainable("a.w")}), IsEmpty());
  EXPECT_THAT(subtrees({buffer("rope.table")}), IsEmpty());
}

TEST(FrozenSubtrees, R28_ATrainableParameterAboveThawsOnlyItself) {
  EXPECT_THAT(subtrees({trainable("a.w"), frozen("a.b.w"), frozen("a.c.w"), frozen("a.c.d.w")}),
              ElementsAre("a.b", "a.c"));
}

TEST(FrozenSubtrees, R28_AFrozenParameterBesideATrainableChildIsInNoSubtree) {
  // LoRA: the base weight is frozen, its module is not.
  EXPECT_THAT(subtrees({frozen("q.weight"), trainable("q.lora_A.weight"), trainable("q.lora_B.weight")}), IsEmpty());
}

TEST(FrozenSubtrees, ModulesAreComponentsNotPrefixes) {
  EXPECT_THAT(subtrees({frozen("enc.w"), trainable("encoder.w")}), ElementsAre("enc"));
}

TEST(FrozenSubtrees, R49_ATiedParameterTrainsUnderAllItsNames) {
  EXPECT_THAT(subtrees({frozen("embed.w"), trainable("head.w"), frozen("c.w")}, {{"embed.w", "head.w"}}),
              ElementsAre("c"));
}

TEST(FrozenSubtrees, BuffersThatNeedAGradientDoNotThaw) {
  Tensor odd = buffer("a.b");
  odd.requires_grad = true;
  EXPECT_THAT(subtrees({frozen("a.w"), odd, trainable("z.w")}), ElementsAre("a"));
}

TEST(IsBeneath, WholeComponents) {
  EXPECT_TRUE(is_beneath("a.b.c", ""));
  EXPECT_TRUE(is_beneath("a.b.c", "a"));
  EXPECT_TRUE(is_beneath("a.b.c", "a.b"));
  EXPECT_TRUE(is_beneath("a", "a"));
  EXPECT_FALSE(is_beneath("ab.c", "a"));
  EXPECT_FALSE(is_beneath("a", "a.b"));
}

}  // namespace
}  // namespace lading::model
