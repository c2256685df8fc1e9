#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "policy/policy.h"

namespace lading::policy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

GroupMember trainable(std::string_view name, DType storage, DType compute) {
  return {.name = name, .group = {}, .storage = storage, .compute = compute, .requires_grad = true};
}
GroupMember bf16(std::string_view name) { return trainable(name, DType::kBF16, DType::kBF16); }
GroupMember f32(std::string_view name) { return trainable(name, DType::kF32, DType::kF32); }
GroupMember frozen(std::string_view name, DType storage, DType compute) {
  return {.name = name, .group = {}, .storage = storage, .compute = compute, .requires_grad = false};
}
GroupMember tied(GroupMember member, std::string_view to) {
  member.tied_to = to;
  return member;
}

Policy mixed_precision() {
  Policy policy;
  policy.compute_dtype = DType::kBF16;
  return policy;
}

// Each unit as "a+b BF16/BF16>F32": modules, storage, compute, and what its outputs become.
std::vector<std::string> units_of(const std::vector<GroupMember>& members, const UnitWish& wish = {},
                                  const Policy& policy = mixed_precision()) {
  const auto units = propose_units(policy, wish, members);
  if (!units) return {"refused: " + units.error().front().text()};
  std::vector<std::string> texts;
  for (const UnitProposal& unit : *units) {
    std::string text;
    for (const std::string& module : unit.modules) {
      text += (text.empty() ? "" : "+") + (module.empty() ? std::string("root") : module);
    }
    text.append(" ").append(name(unit.storage)).append("/").append(name(unit.compute));
    if (unit.output) text.append(">").append(name(*unit.output));
    texts.push_back(text);
  }
  return texts;
}

TEST(ProposeUnits, R27_AUniformModelIsTheUnitsThatWereWished) {
  EXPECT_THAT(units_of({bf16("l.0.a.w"), bf16("l.0.b.w"), bf16("l.1.a.w"), bf16("norm.w")}, {{"l.0", "l.1"}, {}, {}}),
              ElementsAre("l.0 BF16/BF16", "l.1 BF16/BF16", "root BF16/BF16"));
  EXPECT_THAT(units_of({bf16("w")}), ElementsAre("root BF16/BF16")) << "the root always is one";
}

TEST(ProposeUnits, R27_AnotherDtypeIsTakenOutFirstAsItsLargestModules) {
  EXPECT_THAT(units_of({bf16("l.attn.q.w"), bf16("l.attn.k.w"), f32("l.mixer.fp32.A_log"), f32("l.mixer.fp32.dt"),
                        bf16("l.mixer.in.w")},
                       {{"l"}, {}, {}}),
              ElementsAre("l.mixer.fp32 F32/F32>BF16", "l BF16/BF16", "root BF16/BF16"));
}

TEST(ProposeUnits, R27_AModuleWithWishedUnitsInItIsNotTakenAsAWhole) {
  EXPECT_THAT(units_of({bf16("embed.w"), bf16("head.w"), f32("tower.norm.w"), bf16("tower.l.0.w")},
                       {{"tower.l.0"}, {"tower.l"}, {}}),
              ElementsAre("tower.l.0 BF16/BF16", "tower.norm F32/F32>BF16", "root BF16/BF16"));
}

TEST(ProposeUnits, R27_ModulesOfOneOtherDtypeAreGatheredTogether) {
  EXPECT_THAT(
      units_of({bf16("l.q.w"), bf16("l.k.w"), bf16("l.v.w"), f32("l.norm1.w"), f32("l.norm2.w")}, {{"l"}, {}, {}}),
      ElementsAre("l.norm1+l.norm2 F32/F32>BF16", "l BF16/BF16", "root BF16/BF16"));
}

// A state-space mixer owns its F32 parameters itself, and its projections are modules in it.
TEST(ProposeUnits, R27_WhatAModuleOwnsDecidesWhichDtypeIsItsOwn) {
  GroupMember large = bf16("l.mixer.in.w");
  large.elems = 1000;
  EXPECT_THAT(
      units_of({bf16("l.attn.w"), f32("l.mixer.A_log"), f32("l.mixer.D"), large, bf16("l.mixer.out.w")},
               {{"l"}, {}, {}}),
      ElementsAre("l.mixer.in+l.mixer.out BF16/BF16>F32", "l.mixer F32/F32>BF16", "l BF16/BF16", "root BF16/BF16"));
}

TEST(ProposeUnits, R27_MostElementsDecideWhereAModuleOwnsNone) {
  GroupMember large = f32("head.w");
  large.elems = 1000;
  EXPECT_THAT(units_of({bf16("a.w"), bf16("b.w"), large}), ElementsAre("a+b BF16/BF16>F32", "root F32/F32"));
}

TEST(ProposeUnits, R27_StorageAndComputeAreSeparateAxes) {
  EXPECT_THAT(units_of({trainable("l.p.w", DType::kF32, DType::kBF16), trainable("l.p.v", DType::kF32, DType::kBF16),
                        f32("l.q.w")}),
              ElementsAre("l.q F32/F32>BF16", "root F32/BF16"));
  EXPECT_THAT(
      units_of({trainable("p.w", DType::kF32, DType::kBF16), trainable("p.v", DType::kF32, DType::kBF16), bf16("q.w")}),
      ElementsAre("q BF16/BF16", "root F32/BF16"))
      << "outputs of one dtype need no cast";
}

TEST(ProposeUnits, R27_InseparableSiblingsAreAnErrorThatNamesThemAll) {
  const auto units = propose_units(
      mixed_precision(), {},
      {f32("a.x"), bf16("a.y"), bf16("b.x"), trainable("b.y", DType::kBF16, DType::kF32), bf16("c.x"), bf16("c.z")});
  ASSERT_FALSE(units);
  ASSERT_EQ(units.error().size(), 2U) << "one per module";
  EXPECT_THAT(units.error().list()[0].found, HasSubstr("\"a.x\""));
  EXPECT_THAT(units.error().list()[0].found, HasSubstr("\"a.y\""));
  EXPECT_THAT(units.error().list()[1].found, HasSubstr("\"b.y\""));
  EXPECT_THAT(units.error().list()[1].found, Not(HasSubstr("\"c.x\"")));
}

TEST(ProposeUnits, R27_AFrozenParameterGoesWithItsComputeDtype) {
  EXPECT_THAT(
      units_of({trainable("l.lora.w", DType::kF32, DType::kBF16), frozen("l.base.w", DType::kBF16, DType::kBF16)}),
      ElementsAre("root F32/BF16"));
  EXPECT_THAT(units_of({trainable("l.w", DType::kF32, DType::kBF16), frozen("l.b", DType::kBF16, DType::kBF16)}),
              ElementsAre("root F32/BF16"))
      << "siblings too";
  EXPECT_THAT(units_of({bf16("l.w"), bf16("l.v"), frozen("pinned.w", DType::kF32, DType::kF32)}),
              ElementsAre("pinned F32/F32>BF16", "root BF16/BF16"));
  EXPECT_THAT(units_of({bf16("l.w"), frozen("l.pinned", DType::kF32, DType::kF32)}), ElementsAre(HasSubstr("refused")));
  EXPECT_THAT(units_of({bf16("l.w"), frozen("l.steps", DType::kI64, DType::kI64)}), ElementsAre("root BF16/BF16"));
}

TEST(ProposeUnits, R27_WithoutAParamDtypeFrozenOnesGoAnywhereAndNothingIsCast) {
  EXPECT_THAT(units_of({bf16("l.w"), frozen("l.pinned", DType::kF32, DType::kF32)}, {}, {}),
              ElementsAre("root BF16/BF16"));
  EXPECT_THAT(units_of({bf16("l.w"), bf16("m.w"), f32("n.w")}, {}, {}), ElementsAre("n F32/F32", "root BF16/BF16"));
}

TEST(ProposeUnits, R27_ContainersAreNoUnits) {
  EXPECT_THAT(units_of({bf16("embed.w"), bf16("head.w"), bf16("norm.w"), f32("heads.0.w"), f32("heads.1.w")},
                       {{}, {"heads"}, {}}),
              ElementsAre("heads.0+heads.1 F32/F32>BF16", "root BF16/BF16"));
  EXPECT_THAT(units_of({bf16("l.w"), f32("l.list.0"), f32("l.list.1")}, {{}, {"l.list"}, {}}),
              ElementsAre(HasSubstr("module \"l\"")))
      << "a ParameterList's forward is never called: its parameters are its parent's";
  EXPECT_THAT(units_of({bf16("l.0.w")}, {{"l"}, {"l"}, {}}), ElementsAre(HasSubstr("no forward method")));
}

TEST(ProposeUnits, R27_TiedNamesComeToLieInOneUnit) {
  const GroupMember embed = tied(bf16("embed.w"), "embed.w");
  const GroupMember head = tied(bf16("head.w"), "embed.w");
  EXPECT_THAT(units_of({embed, bf16("l.w"), head}, {{"embed", "l", "head"}, {}, {}}),
              ElementsAre("embed+head BF16/BF16", "l BF16/BF16", "root BF16/BF16"));
  EXPECT_THAT(units_of({embed, bf16("l.w"), head}, {{"l", "head"}, {}, {}}),
              ElementsAre("l BF16/BF16", "root BF16/BF16"))
      << "the inner unit is given up";
  GroupMember large = f32("l.w");
  large.elems = 1000;
  EXPECT_THAT(units_of({embed, large, head}), ElementsAre("embed+head BF16/BF16>F32", "root F32/F32"));
  large = bf16("l.w");
  large.elems = 1000;
  EXPECT_THAT(units_of({tied(bf16("a.w"), "a.w"), f32("b.own"), tied(bf16("b.c.w"), "a.w"), large}),
              ElementsAre(HasSubstr("shares its storage")))
      << "the root would have to take from inside of another unit";
}

TEST(ProposeUnits, R27_AModuleUnderTwoNamesCountsOnce) {
  const std::vector<GroupMember> members = {tied(bf16("l.0.w"), "l.0.w"), tied(bf16("l.1.w"), "l.0.w"), bf16("n.w")};
  EXPECT_THAT(units_of(members, {{"l.0"}, {"l"}, {"l.1"}}), ElementsAre("l.0 BF16/BF16", "root BF16/BF16"));
}

TEST(ProposeUnits, R27_AnEmptyRootPassesOnWhatItsUnitsCompute) {
  EXPECT_THAT(units_of({f32("l.0.w"), f32("l.1.w")}, {{"l.0", "l.1"}, {"l"}, {}}),
              ElementsAre("l.0 F32/F32", "l.1 F32/F32", "root F32/F32"));
  EXPECT_THAT(units_of({}), ElementsAre("root BF16/BF16"));
}

// Whatever is proposed passes check_groups(), and takes every parameter once: random trees and dtypes.
TEST(ProposeUnits, R27_WhatIsProposedIsUniform) {
  std::mt19937 random(20260815);
  const auto below = [&](unsigned limit) { return static_cast<std::size_t>(random() % limit); };
  std::size_t accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> modules = {""};
    for (std::size_t i = 0, count = 2 + below(10); i < count; ++i) {
      const std::string& parent = modules[below(static_cast<unsigned>(modules.size()))];
      modules.push_back((parent.empty() ? "" : parent + ".") + "m" + std::to_string(i));
    }
    UnitWish wish;
    std::vector<std::string> names;
    std::vector<GroupMember> kinds;
    for (const std::string& module : modules) {
      if (below(3) == 0) wish.modules.push_back(module);
      const bool is_wide = below(3) == 0;  // of one dtype inside a module, mostly
      for (std::size_t i = 0, count = below(3); i < count; ++i) {
        names.push_back((module.empty() ? "" : module + ".") + "w" + std::to_string(i));
        const bool flips = below(40) == 0;
        GroupMember member = is_wide != flips ? f32("") : bf16("");
        member.requires_grad = below(4) != 0;
        member.elems = 1 + below(100);
        kinds.push_back(member);
      }
    }
    for (std::size_t i = 0; i < names.size(); ++i) kinds[i].name = names[i];
    const auto units = propose_units(mixed_precision(), wish, kinds);
    if (!units) continue;
    ++accepted;
    std::vector<std::string> taken;
    for (std::size_t i = 0; i < units->size(); ++i) {
      for (std::size_t j = i + 1; j < units->size(); ++j) {
        for (const std::string& later : (*units)[j].modules) {
          for (const std::string& earlier : (*units)[i].modules) {
            ASSERT_FALSE(model::is_beneath(later, earlier)) << later << " must be sharded before " << earlier;
          }
        }
      }
      for (const std::string& parameter : (*units)[i].parameters) {
        taken.push_back(parameter);
        const auto member =
            std::find_if(kinds.begin(), kinds.end(), [&](const auto& m) { return m.name == parameter; });
        EXPECT_EQ(member->compute, (*units)[i].compute) << parameter;
        EXPECT_TRUE(member->storage == (*units)[i].storage || !member->requires_grad) << parameter;
      }
    }
    EXPECT_THAT(taken, ::testing::UnorderedElementsAreArray(names));
  }
  EXPECT_GT(accepted, 1000U);
}

TEST(DecideWithoutFiles, R28_AFrozenTowersMemoryIsToBecomeTheComputeDtype) {
  const auto tensor = [](std::string name, model::Kind kind, bool requires_grad) {
    model::Tensor made;
    made.name = std::move(name);
    made.kind = kind;
    made.shape = Shape{2};
    made.requires_grad = requires_grad;
    made.presence = model::Presence::kReal;
    made.device = "cpu";
    return made;
  };
  auto skeleton = model::make_skeleton(
      {tensor("t.w", model::Kind::kParameter, false), tensor("t.std_bias", model::Kind::kBuffer, false),
       tensor("t.A_log", model::Kind::kParameter, false), tensor("l.w", model::Kind::kParameter, true),
       tensor("l.scale", model::Kind::kBuffer, false)},
      {}, {{"A_log", model::PinStrength::kFloat16AndBFloat16}});
  ASSERT_TRUE(skeleton);
  const auto decisions = decide_without_files(mixed_precision(), *skeleton);
  ASSERT_TRUE(decisions);
  std::vector<std::string> found;
  for (std::size_t i = 0; i < decisions->size(); ++i) {
    const DTypeDecision& d = (*decisions)[i];
    EXPECT_EQ(d.storage, DType::kF32);
    found.push_back(skeleton->tensors[i].name + " " + std::string(name(d.compute)) + " " + std::string(d.compute_rule));
  }
  EXPECT_THAT(found, UnorderedElementsAre("t.w BF16 R28", "t.std_bias BF16 R28", "t.A_log F32 R26", "l.w BF16 R26",
                                          "l.scale F32 R28"));
}

}  // namespace
}  // namespace lading::policy
