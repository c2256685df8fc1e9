#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "plan/plan.h"
#include "plan/plan_for_tests.h"

namespace lading::plan {
namespace {

using Edit = std::function<void(Plan&)>;

std::string digest_after(const Edit& edit) {
  Plan plan = plan_of_everything();
  edit(plan);
  return digest(plan);
}

TEST(Digest, Is128BitsInHexAndStable) {
  const std::string hex = digest(plan_of_everything());
  EXPECT_EQ(hex.size(), 32U);
  EXPECT_EQ(hex.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(hex, digest(plan_of_everything()));
}

TEST(Digest, AnyChangeThatMattersChangesItAndEachDifferently) {
  using layout::Placement;
  const std::vector<Edit> edits = {
      [](Plan& p) { p.files[0].size_bytes += 1; },
      [](Plan& p) { p.files[0].name = "c.safetensors"; },
      [](Plan& p) { p.sources[0].key = "k.9"; },
      [](Plan& p) { p.sources[0].file = 1; },
      [](Plan& p) { p.sources[0].bytes.begin += 1; },
      [](Plan& p) { p.sources[0].bytes.end += 1; },
      [](Plan& p) { p.sources[0].dtype = DType::kF16; },
      [](Plan& p) {
        p.sources[0].shape = {6, 4};
      },
      [](Plan& p) { p.sources.pop_back(); },
      [](Plan& p) {
        p.mesh = layout::Mesh({{"tp", 2}, {"dp", 2}});
      },
      [](Plan& p) {
        p.mesh = layout::Mesh({{"dp", 4}, {"tp", 2}});
      },
      [](Plan& p) {
        p.mesh = layout::Mesh({{"dp", 2}});
      },
      [](Plan& p) { p.devices.type = layout::DeviceType::kCpu; },
      [](Plan& p) { p.devices.per_node = 2; },
      [](Plan& p) {
        p.devices.list = {{layout::DeviceType::kCuda, 1}};
      },
      [](Plan& p) { p.seed += 1; },
      [](Plan& p) { p.call_order.clear(); },
      [](Plan& p) { p.ignored_keys[0].first = "older"; },
      [](Plan& p) { p.ignored_keys[0].second = "other"; },
      [](Plan& p) { p.unexpected_keys[0] = "odder"; },
      [](Plan& p) { p.unexpected_keys.clear(); },
      [](Plan& p) { p.statements.pop_back(); },
      [](Plan& p) { p.statements[0].name = "a.other"; },
      [](Plan& p) { p.statements[0].kind = model::Kind::kBuffer; },
      [](Plan& p) {
        p.statements[0].shape = {6, 8};
      },
      [](Plan& p) {
        p.statements[0].shape = {8, 6, 1};
      },
      [](Plan& p) { p.statements[0].provenance = Provenance::kHost; },
      [](Plan& p) { p.statements[0].expression.fill = 0; },
      [](Plan& p) { p.statements[0].expression.fill = -0.0; },
      [](Plan& p) { p.statements[0].expression.end = 9; },
      [](Plan& p) {
        p.statements[0].expression.parts[0].order = {1, 0};
      },
      [](Plan& p) { p.statements[0].expression.parts[0].parts[0].dim = 1; },
      [](Plan& p) { p.statements[0].expression.parts[0].parts[0].op = mapping::Op::kStack; },
      [](Plan& p) { p.statements[0].expression.parts[0].parts[0].parts[0].begin = 1; },
      [](Plan& p) { p.statements[0].expression.parts[0].parts[0].parts[0].parts[0].key = "k.7"; },
      [](Plan& p) {
        p.statements[0].expression.parts[0].parts[0].parts[1].shape = {6, 4};
      },
      [](Plan& p) {
        std::swap(p.statements[0].expression.parts[0].parts[0].parts[0],
                  p.statements[0].expression.parts[0].parts[0].parts[1]);
      },
      [](Plan& p) {
        p.statements[0].expression.factors = {2, 4};
      },
      [](Plan& p) { p.statements[5].must_equal.clear(); },
      [](Plan& p) { p.statements[5].must_equal[0].key = "k.8"; },
      [](Plan& p) { p.statements[6].alias_of = "a.built"; },
      [](Plan& p) { p.statements[1].recipe.inputs = {"c.fill"}; },
      [](Plan& p) { p.statements[2].recipe.value = 0.2; },
      [](Plan& p) { p.statements[4].recipe.kind = model::RecipeKind::kUniform; },
      [](Plan& p) { p.statements[4].recipe.low = 1; },
      [](Plan& p) { p.statements[4].recipe.high = 1; },
      [](Plan& p) { p.statements[4].recipe.mean = 1; },
      [](Plan& p) { p.statements[4].recipe.std = 2; },
      [](Plan& p) { p.statements[4].recipe.zero_row.reset(); },
      [](Plan& p) { p.statements[4].recipe.zero_row = 0; },
      [](Plan& p) { p.statements[0].checkpoint_dtype.reset(); },
      [](Plan& p) { p.statements[0].checkpoint_dtype = DType::kF16; },
      [](Plan& p) { p.statements[0].storage = DType::kF16; },
      [](Plan& p) { p.statements[0].compute = DType::kF16; },
      [](Plan& p) { p.statements[0].rule = "R2"; },
      [](Plan& p) { p.statements[0].mapping_rule = "other"; },
      [](Plan& p) { p.statements[0].placement.device = layout::DeviceRule::kCpu; },
      [](Plan& p) { p.statements[0].placement.fsdp_group = "other"; },
      [](Plan& p) { p.statements[0].placement.slots.pop_back(); },
      [](Plan& p) { p.statements[0].placement.slots[1].name = "third"; },
      [](Plan& p) { p.statements[0].placement.slots[0].cuts[0].dim = 1; },
      [](Plan& p) { p.statements[0].placement.slots[0].cuts[0].axes = {0}; },
      [](Plan& p) {
        p.statements[0].placement.slots[0].cuts[0].axes = {1, 0};
      },
      [](Plan& p) { p.statements[0].placement.slots[0].cuts[0].even = true; },
      [](Plan& p) { p.statements[0].placement.slots[0].cuts[0].kind = layout::CutKind::kStridedShard; },
      [](Plan& p) { p.statements[0].placement.slots[0].cuts[0].split_factor = 2; },
      [](Plan& p) { p.statements[0].placement.slots[0].cuts[0].pad_multiple = 2; },
      [](Plan& p) { p.statements[0].placement.slots[0].cuts[0].flat_parameter = "u"; },
      [](Plan& p) { p.statements[0].placement.slots[0].cuts[0].group_offset_elems = 2; },
      [](Plan& p) { p.statements[0].placement.slots[0].cuts[0].group_elems = 2; },
      [](Plan& p) { p.statements[0].placement.slots[0].cuts[0].owners = {1}; },
  };
  std::map<std::string, std::size_t> seen = {{digest(plan_of_everything()), edits.size()}};
  for (std::size_t i = 0; i < edits.size(); ++i) {
    const auto [place, is_new] = seen.emplace(digest_after(edits[i]), i);
    EXPECT_TRUE(is_new) << "edit " << i << " gives what edit " << place->second << " gives";
  }
}

TEST(Digest, TextsThatRunTogetherStayApart) {
  const auto keys = [](std::vector<std::string> names) {
    return digest_after([&](Plan& p) { p.unexpected_keys = std::move(names); });
  };
  EXPECT_NE(keys({"ab", "c"}), keys({"a", "bc"}));
  EXPECT_NE(keys({"ab"}), keys({"a", "b"}));
  EXPECT_NE(keys({""}), keys({}));
}

TEST(Digest, WhatRanksNeedNotAgreeOnLeavesItAlone) {
  const std::string plain = digest(plan_of_everything());
  EXPECT_EQ(plain, digest_after([](Plan& p) { p.ranks.clear(); }));
  EXPECT_EQ(plain, digest_after([](Plan& p) { p.warnings = {}; }));
  EXPECT_EQ(plain, digest_after([](Plan& p) { p.budget_bytes *= 2; })) << "nodes differ in memory";
  EXPECT_EQ(plain, digest_after([](Plan& p) { p.statements[3].kept_device = "cuda:0"; })) << "each rank has its own";
  EXPECT_EQ(plain, digest_after([](Plan& p) { p.statements[0].reason = p.statements[0].dtype_reason = "reworded"; }));
}

TEST(Digest, TheOrderInWhichSourcesWereMetDoesNotMatter) {
  EXPECT_EQ(digest(plan_of_everything()), digest_after([](Plan& p) {
              std::swap(p.files[0], p.files[1]);
              for (Source& source : p.sources) source.file = FileId(1 - source.file.number());
              std::swap(p.sources[0], p.sources[2]);
            }));
}

}  // namespace
}  // namespace lading::plan
