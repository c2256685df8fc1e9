#include "cli/module_tree.h"
#include "support/tensor_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace lading::cli {
namespace {

using ::testing::ElementsAre;

std::vector<TreeLine> tree_of(std::vector<TensorInfo> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return module_tree(tensors);
}

std::vector<TreeLine> tree_of_names(const std::vector<std::string>& names) {
  std::vector<TensorInfo> tensors;
  for (const std::string& name : names) tensors.push_back(tensor(name));
  return tree_of(std::move(tensors));
}

std::vector<std::string> labels(const std::vector<TreeLine>& lines) {
  std::vector<std::string> out;
  for (const TreeLine& line : lines) out.push_back(std::string(static_cast<std::size_t>(line.depth), '>') + line.label);
  return out;
}

TEST(ModuleTree, NoTensorsNoLines) { EXPECT_TRUE(module_tree({}).empty()); }

TEST(ModuleTree, OneTensorIsOneLine) {
  const auto lines = tree_of_names({"a.b.weight"});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].label, "a.b.weight");
  EXPECT_EQ(lines[0].depth, 0);
  EXPECT_EQ(lines[0].copies, 1U);
  EXPECT_EQ(lines[0].tensors, 1U);
  EXPECT_EQ(lines[0].bytes, 4U);
  EXPECT_EQ(lines[0].leaf, "F32 [1]");
}

TEST(ModuleTree, EqualLayersAreToldOnce) {
  std::vector<TensorInfo> tensors = {tensor("model.embed.weight", 400)};
  for (int i = 0; i < 32; ++i) {
    tensors.push_back(tensor("model.layers." + std::to_string(i) + ".attn.weight", 8));
    tensors.push_back(tensor("model.layers." + std::to_string(i) + ".norm.weight", 4));
  }
  const auto lines = tree_of(std::move(tensors));
  EXPECT_THAT(labels(lines),
              ElementsAre("model", ">embed.weight", ">layers.{0..31}", ">>attn.weight", ">>norm.weight"));
  EXPECT_EQ(lines[0].tensors, 65U);
  EXPECT_EQ(lines[0].bytes, 400U + 32 * 12);
  EXPECT_EQ(lines[2].copies, 32U);
  EXPECT_EQ(lines[2].tensors, 64U);
  EXPECT_EQ(lines[2].bytes, 32U * 12);
  EXPECT_EQ(lines[2].leaf, "");
  EXPECT_EQ(lines[3].copies, 32U);
  EXPECT_EQ(lines[3].tensors, 32U);
  EXPECT_EQ(lines[3].bytes, 32U * 8);
  EXPECT_EQ(lines[3].leaf, "F32 [2]");
}

TEST(ModuleTree, NestedNumbersMultiply) {
  std::vector<std::string> names;
  for (int layer = 0; layer < 3; ++layer) {
    for (int expert = 0; expert < 4; ++expert) {
      names.push_back("l." + std::to_string(layer) + ".e." + std::to_string(expert) + ".w");
    }
  }
  const auto lines = tree_of_names(names);
  ASSERT_THAT(labels(lines), ElementsAre("l.{0..2}.e.{0..3}.w"));
  EXPECT_EQ(lines[0].copies, 12U);
  EXPECT_EQ(lines[0].tensors, 12U);
  EXPECT_EQ(lines[0].bytes, 48U);
}

TEST(ModuleTree, GapsAreShown) {
  EXPECT_THAT(labels(tree_of_names({"l.0.w", "l.1.w", "l.2.w", "l.5.w"})), ElementsAre("l.{0..2,5}.w"));
  EXPECT_THAT(labels(tree_of_names({"l.0.w", "l.2.w", "l.4.w"})), ElementsAre("l.{0,2,4}.w"));
  EXPECT_THAT(labels(tree_of_names({"l.7.w"})), ElementsAre("l.7.w"));
}

TEST(ModuleTree, NumbersAreInNaturalOrder) {
  std::vector<std::string> names;
  for (int i = 0; i < 12; ++i) names.push_back("l." + std::to_string(i) + ".w");
  EXPECT_THAT(labels(tree_of_names(names)), ElementsAre("l.{0..11}.w")) << "10 follows 9, not 1";
}

TEST(ModuleTree, DifferentLayersStayApart) {
  // Another shape, another dtype, another name, one tensor more.
  const auto lines = tree_of({tensor("l.0.w", 4), tensor("l.1.w", 8), tensor("l.2.w", 4, "I32"), tensor("l.3.v", 4),
                              tensor("l.4.w", 4), tensor("l.4.x", 4), tensor("l.5.w", 4)});
  EXPECT_THAT(labels(lines), ElementsAre("l", ">{0,5}.w", ">1.w", ">2.w", ">3.v", ">4", ">>w", ">>x"));
  EXPECT_EQ(lines[1].copies, 2U);
  EXPECT_EQ(lines[2].copies, 1U);
}

TEST(ModuleTree, NamesThatWouldRunTogetherStayApart) {
  // The same characters, cut differently.
  const auto lines = tree_of_names({"l.0.ab.c", "l.1.a.bc"});
  EXPECT_EQ(labels(lines), (std::vector<std::string>{"l", ">0.ab.c", ">1.a.bc"}));
}

TEST(ModuleTree, LeadingZerosMakeANameNotANumber) {
  EXPECT_THAT(labels(tree_of_names({"l.0.w", "l.00.w", "l.01.w", "l.1.w"})),
              ElementsAre("l", ">{0..1}.w", ">00.w", ">01.w"));
  const auto lines = tree_of_names({"l.-1.w", "l.1e3.w", "l.99999999999999999999999.w"});
  EXPECT_EQ(lines.size(), 4U) << "none is a number that can be counted";
}

TEST(ModuleTree, AMillionDotsAreFine) {
  const std::string dots(1'000'000, '.');
  const auto lines = tree_of_names({dots, dots + "a", "normal.weight"});
  std::uint64_t tensors = 0;
  for (const TreeLine& line : lines) {
    EXPECT_LT(line.depth, 100);
    if (line.depth == 0) tensors += line.tensors;
  }
  EXPECT_EQ(tensors, 3U);
  EXPECT_LT(lines.size(), 200U);
}

TEST(ModuleTree, TwoDeepNamesThatDifferAtTheEndAreTwoTensors) {
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += "m.";
  std::uint64_t leaves = 0;
  for (const TreeLine& line : tree_of_names({deep + "a", deep + "b"})) leaves += line.leaf.empty() ? 0U : line.copies;
  EXPECT_EQ(leaves, 2U);
}

TEST(ModuleTree, TensorsThatWouldTakeTooManyNodesAreCounted) {
  constexpr std::size_t kCount = 30'000;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kCount; ++i) {
    std::string name = std::to_string(100'000 + i) + "x";
    for (int c = 0; c < 23; ++c) name += ".m";
    names.push_back(name);
  }
  const auto lines = tree_of_names(names);
  std::uint64_t tensors = 0;
  for (const TreeLine& line : lines) tensors += line.depth == 0 ? line.tensors : 0;
  EXPECT_EQ(tensors, kCount);
  EXPECT_GT(lines.back().tensors, 9'000U);
  EXPECT_THAT(lines.back().label, ::testing::HasSubstr("--tensors"));
}

TEST(ModuleTree, EmptyNamesAndEmptyComponents) {
  for (const char* name : {"", ".", "a.", ".a", "a..b"}) {
    const auto lines = tree_of_names({name});
    ASSERT_EQ(lines.size(), 1U) << name;
    EXPECT_EQ(lines[0].label, name);
    EXPECT_EQ(lines[0].leaf, "F32 [1]");
  }
}

TEST(ModuleTree, ATensorMayAlsoBeAModule) {
  const auto lines = tree_of({tensor("a", 4), tensor("a.b", 8)});
  EXPECT_THAT(labels(lines), ElementsAre("a", ">b"));
  EXPECT_EQ(lines[0].leaf, "F32 [1]");
  EXPECT_EQ(lines[1].leaf, "F32 [2]");
  EXPECT_EQ(lines[1].bytes, 8U);
}

TEST(ModuleTree, Fault16_LabelsAndDtypesAreEscaped) {
  const auto lines = tree_of({tensor("a\x1b[31m.w\n", 4, "\x1b[2J")});
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].label, "a\\x1b[31m.w\\n");
  EXPECT_EQ(lines[0].leaf, "\\x1b[2J [1]");
}

}  // namespace
}  // namespace lading::cli
