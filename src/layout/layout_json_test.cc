#include "layout/layout_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "layout/region.h"

namespace lading::layout {
namespace {

using ::testing::HasSubstr;

Result<Layout, Errors> parse(const std::string& text) {
  const auto document = JsonDocument::parse(JsonBuffer::copy_of(text));
  if (!document) return fail(document.error());
  return parse_layout(*document);
}

constexpr const char* kHead =
    R"({"schema": "lading.layout/1", "mesh": [{"name": "dp", "size": 4}, {"name": "tp", "size": 2}],
 "devices": "cpu", "rules": [)";

std::string with_rule(const std::string& rule) { return kHead + rule + "]}"; }
std::string with_cut(const std::string& cut) { return with_rule(R"({"pattern": "*", "cuts": [)" + cut + "]}"); }

TEST(LayoutJson, ReadsEveryKindOfCut) {
  const auto layout = parse(with_rule(R"(
    {"pattern": "a", "cuts": [{"shard": 1, "even": true, "gathered": true, "axes": ["tp"]}, {"strided_shard": 0, "split_factor": 2, "axes": ["dp"]}]},
    {"pattern": "b", "cuts": [{"owner": [0, 3], "axes": ["dp"]}, {"flat": {"pad_multiple": 8}, "axes": ["tp"]}],
     "slots": {"secondary": [{"flat": {}, "axes": ["tp", "dp"]}]}, "device": "cpu", "fsdp_group": "root"},
    {"pattern": "c", "cuts": [{"flat_group": {"unit": "u", "offset": 3, "elems": 99}, "axes": ["dp", "tp"]}], "device": "rank"})"));
  ASSERT_TRUE(layout.has_value()) << layout.error().front().text();
  const Placement& a = layout->placement_of("a");
  ASSERT_EQ(a.slots.front().cuts.size(), 2U);
  EXPECT_TRUE(a.slots.front().cuts[0].even);
  EXPECT_TRUE(a.slots.front().cuts[0].gathered);
  EXPECT_FALSE(a.slots.front().cuts[1].gathered);
  EXPECT_EQ(a.slots.front().cuts[0].axes, std::vector<std::size_t>{1});
  EXPECT_EQ(a.slots.front().cuts[1].split_factor, 2U);
  const Placement& b = layout->placement_of("b");
  EXPECT_EQ(b.slots.front().cuts[0].owners, (std::vector<std::uint64_t>{0, 3}));
  EXPECT_EQ(b.slots.front().cuts[1].pad_multiple, 8U);
  EXPECT_EQ(b.slots.at(1).name, "secondary");
  EXPECT_EQ(b.slots.at(1).cuts[0].axes, (std::vector<std::size_t>{1, 0}));
  EXPECT_EQ(b.device, DeviceRule::kCpu);
  EXPECT_EQ(b.fsdp_group, "root");
  const Cut& c = layout->placement_of("c").slots.front().cuts.front();
  EXPECT_EQ(c.flat_parameter, "u");
  EXPECT_EQ(c.group_offset_elems, 3U);
  EXPECT_EQ(c.group_elems, 99U);
}

TEST(LayoutJson, ARuleNamesOneTensorOrGivesAPattern) {
  const auto layout = parse(with_rule(R"({"name": "w*", "cuts": [{"shard": 0, "axes": ["dp"]}]})"));
  ASSERT_TRUE(layout.has_value());
  EXPECT_EQ(layout->rules.front().pattern, NamePattern::exact("w*"));
  EXPECT_EQ(parse(layout_json(*layout)).value(), *layout);
}

struct BadDocument {
  std::string text;
  std::string path;
};

TEST(LayoutJson, EveryProblemHasItsPath) {
  const auto document = [](const std::string& mesh, const std::string& devices) {
    return R"({"schema": "lading.layout/1", "mesh": )" + mesh + R"(, "devices": )" + devices + R"(, "rules": []})";
  };
  const std::string two = R"([{"name": "dp", "size": 2}])";
  const std::vector<BadDocument> cases = {
      {"[]", "$: not an object"},
      {R"({"schema": "lading.layout/2", "mesh": [], "devices": "cpu", "rules": []})", "$.schema"},
      {R"({"schema": "lading.layout/1", "devices": "cpu", "rules": []})", "$.mesh: the field is missing"},
      {R"({"schema": "lading.layout/1", "mesh": [], "rules": []})", "$.devices: the field is missing"},
      {R"({"schema": "lading.layout/1", "mesh": [], "devices": "cpu"})", "$.rules: the field is missing"},
      {R"({"schema": "lading.layout/1", "mesh": [], "devices": "cpu", "rules": [], "x": 1})", "$.x: unknown field"},
      {document("{}", R"("cpu")"), "$.mesh: not an array"},
      {document(R"([{"name": "dp"}])", R"("cpu")"), "$.mesh[0].size: the field is missing"},
      {document(R"([{"name": "dp", "size": 0}])", R"("cpu")"), "$.mesh: the axis"},
      {document(R"([{"name": "dp", "size": 1}, {"name": "dp", "size": 1}])", R"("cpu")"), "$.mesh: the mesh has two"},
      {document(R"([{"name": "dp", "size": 4294967297}])", R"("cpu")"), "$.mesh: the mesh has too many ranks"},
      {document(two, R"("cuda")"), "$.devices: the device of each rank"},
      {document(two, "3"), "$.devices: the device of each rank"},
      {document(two, R"(["cuda:0"])"), "$.devices: the number of devices"},
      {document(two, R"(["cuda:0", "cuda"])"), "$.devices[1]: the device has no index"},
      {document(two, R"(["cuda:0", 1])"), "$.devices[1]: the device is unknown"},
      {document(two, R"({"type": "cuda", "per_node": 0})"), "$.devices: not a device type"},
      {document(two, R"({"type": "meta", "per_node": 1})"), "$.devices: not a device type"},
      {document(two, R"({"type": "cuda", "per_node": 1, "x": 1})"), "$.devices.x: unknown field"},
      {with_rule("3"), "$.rules[0]: not an object"},
      {with_rule("{}"), "$.rules[0].pattern: the field is missing"},
      {with_rule(R"({"pattern": "*", "name": "a"})"), "$.rules[0].pattern: given together with a name"},
      {with_rule(R"({"name": 1})"), "$.rules[0].name: not a string"},
      {with_rule(R"({"pattern": "*", "cut": []})"), "$.rules[0].cut: unknown field"},
      {with_rule(R"({"pattern": "*", "cuts": {}})"), "$.rules[0].cuts: not an array"},
      {with_rule(R"({"pattern": "*", "device": "gpu"})"), "$.rules[0].device: not one of the allowed words"},
      {with_rule(R"({"pattern": "*", "slots": []})"), "$.rules[0].slots: not an object"},
      {with_rule(R"({"pattern": "*", "slots": {"": []}})"), "$.rules[0].slots.: the slot has no name"},
      {with_rule(R"({"pattern": "*", "slots": {"b": [1]}})"), "$.rules[0].slots.b[0]: not an object"},
      {with_cut("{}"), "$.rules[0].cuts[0]: a cut needs exactly one kind"},
      {with_cut(R"({"shard": 0, "flat": {}, "axes": ["dp"]})"), "$.rules[0].cuts[0]: a cut needs exactly one kind"},
      {with_cut(R"({"shard": -1, "axes": ["dp"]})"), "$.rules[0].cuts[0].shard: not a whole number"},
      {with_cut(R"({"shard": 0})"), "$.rules[0].cuts[0].axes: the field is missing"},
      {with_cut(R"({"shard": 0, "axes": []})"), "$.rules[0].cuts[0]: the cut names no axis"},
      {with_cut(R"({"shard": 0, "axes": ["ep"]})"), "$.rules[0].cuts[0].axes[0]: not an axis"},
      {with_cut(R"({"shard": 0, "axes": ["dp", 1]})"), "$.rules[0].cuts[0].axes[1]: not an axis"},
      {with_cut(R"({"shard": 0, "axes": ["dp"], "split_factor": 2})"), "$.rules[0].cuts[0].split_factor: unknown"},
      {with_cut(R"({"strided_shard": 0, "axes": ["dp"]})"), "$.rules[0].cuts[0].split_factor: the field is missing"},
      {with_cut(R"({"strided_shard": 0, "split_factor": 0, "axes": ["dp"]})"), "$.rules[0].cuts[0]: the split factor"},
      {with_cut(R"({"flat": 1, "axes": ["dp"]})"), "$.rules[0].cuts[0].flat: not an object"},
      {with_cut(R"({"flat": {"pad": 1}, "axes": ["dp"]})"), "$.rules[0].cuts[0].flat.pad: unknown field"},
      {with_cut(R"({"flat": {"pad_multiple": 3}, "axes": ["dp"]})"), "$.rules[0].cuts[0]: the padded size"},
      {with_cut(R"({"flat_group": {"unit": "u", "offset": 0}, "axes": ["dp"]})"),
       "flat_group.elems: the field is missing"},
      {with_cut(R"({"owner": 0, "axes": ["dp"]})"), "$.rules[0].cuts[0].owner: not an array"},
      {with_cut(R"({"owner": ["a"], "axes": ["dp"]})"), "$.rules[0].cuts[0].owner[0]: not a whole number"},
      {with_cut(R"({"owner": [4], "axes": ["dp"]})"), "$.rules[0].cuts[0]: an owner is not a rank of the axis"},
      {with_cut(R"({"shard": 0, "axes": ["dp"]}, {"shard": 1, "axes": ["dp"]})"), "$.rules[0].cuts[1]: the axis"},
  };
  for (const BadDocument& bad : cases) {
    const auto layout = parse(bad.text);
    ASSERT_FALSE(layout.has_value()) << bad.text;
    EXPECT_EQ(layout.error().size(), 1U) << bad.text << "\n" << layout.error().list().back().text();
    EXPECT_EQ(layout.error().front().code, Code::kSchema) << bad.text;
    EXPECT_THAT(layout.error().front().message, HasSubstr(bad.path)) << bad.text;
    EXPECT_TRUE(layout.error().front().bytes.has_value()) << bad.text;
  }
}

TEST(LayoutJson, AllProblemsAreReported) {
  const auto layout = parse(R"({"schema": "x", "mesh": [{"name": "dp", "size": 0}], "devices": "gpu", "rules": [
    {"pattern": 1, "cuts": [{"shard": 0, "axes": ["tp"]}, {"owner": [9], "axes": ["dp"]}], "y": 0}]})");
  ASSERT_FALSE(layout.has_value());
  EXPECT_EQ(layout.error().size(), 5U);
}

TEST(LayoutJson, AMillionRanksCostNothing) {
  const auto layout = parse(R"({"schema": "lading.layout/1", "mesh": [{"name": "dp", "size": 4294967296}],
    "devices": {"type": "cuda", "per_node": 8}, "rules": []})");
  ASSERT_TRUE(layout.has_value());
  EXPECT_EQ(layout->devices.of(4294967295).text(), "cuda:7");
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : random_(seed) {}
  std::uint64_t below(std::uint64_t n) { return std::uniform_int_distribution<std::uint64_t>(0, n - 1)(random_); }

  Layout layout() {
    Layout layout;
    std::vector<Axis> axes(3);
    for (std::size_t i = 0; i < axes.size(); ++i) axes[i] = {"a" + std::to_string(i), 1 + below(3)};
    layout.mesh = Mesh(axes);
    if (below(3) == 0) {
      for (std::uint64_t i = 0; i < layout.mesh.ranks(); ++i)
        layout.devices.list.push_back({DeviceType::kCuda, below(128)});
    } else if (below(2) == 0) {
      layout.devices = {{}, DeviceType::kCuda, 1 + below(128)};
    }
    for (std::uint64_t i = below(4); i > 0; --i) {
      PlacementRule rule{"*\n\"" + std::to_string(below(9)), {}};
      rule.placement.slots.front().cuts = cuts(layout.mesh);
      if (below(2) == 0) rule.placement.slots.push_back({"second\t", cuts(layout.mesh)});
      if (below(2) == 0) rule.placement.device = DeviceRule::kCpu;
      if (below(2) == 0) rule.placement.fsdp_group = "group \"" + std::to_string(below(9));
      layout.rules.push_back(rule);
    }
    return layout;
  }

 private:
  std::vector<Cut> cuts(const Mesh& mesh) {
    std::vector<Cut> cuts;
    const std::uint64_t kinds = below(4);
    for (std::size_t axis = 0; axis < kinds; ++axis) {
      Cut cut;
      cut.axes = {axis};
      const std::uint64_t kind = below(4);
      if (kind == 0) {
        cut.kind = CutKind::kOwner;
        cut.owners = {below(mesh.axes()[axis].size)};
      } else {
        cut.dim = below(~std::uint64_t{0});
        if (kind == 1) cut.kind = CutKind::kStridedShard, cut.split_factor = 1 + below(~std::uint64_t{0});
        if (kind == 2) cut.even = true, cut.gathered = below(2) == 0;
      }
      cuts.push_back(cut);
    }
    if (!cuts.empty() && below(3) == 0) {
      cuts.back() = Cut{
          CutKind::kFlat, cuts.back().axes, 0, 1, false, below(3) * mesh.group_size(cuts.back().axes), "", 0, 0, {}};
    } else if (kinds == 1) {
      cuts.back() = Cut{CutKind::kFlatGroup, {0, 2}, 0, 1, false, 0, "u\\", below(1'000'000), below(1'000'000), {}};
    }
    return cuts;
  }

  std::mt19937_64 random_;
};

TEST(LayoutJson, WhatIsWrittenIsReadBack) {
  Random random(11);
  for (int i = 0; i < 5000; ++i) {
    const Layout layout = random.layout();
    const std::string text = layout_json(layout);
    const auto again = parse(text);
    ASSERT_TRUE(again.has_value()) << text << again.error().front().text();
    ASSERT_EQ(*again, layout) << text;
    ASSERT_EQ(layout_json(*again), text);
  }
}

TEST(LayoutJson, TheExamplesInTheDocumentationAreGood) {
  const auto path = std::filesystem::path(__FILE__).parent_path() / "../../docs/schema/layout.md";
  std::ifstream file(path);
  std::stringstream content;
  content << file.rdbuf();
  const std::string text = content.str();
  std::vector<Layout> layouts;
  for (std::size_t at = text.find("```json\n"); at != std::string::npos; at = text.find("```json\n", at + 1)) {
    const std::size_t begin = at + 8;
    const auto layout = parse(text.substr(begin, text.find("```", begin) - begin));
    ASSERT_TRUE(layout.has_value()) << layout.error().front().text();
    layouts.push_back(*layout);
  }
  ASSERT_EQ(layouts.size(), 2U) << path;
  const auto errors = check_layout(
      layouts[1], {{"first.weight", {3, 5}, true}, {"second.weight", {4, 5}, true}, {"second.experts", {3, 8}, true}});
  EXPECT_TRUE(errors.empty()) << errors.front().text();
  const auto& fused = layouts[0].placement_of("0.gate_up_proj.weight").slots.front().cuts;
  EXPECT_EQ(region_of({16, 2}, fused, layouts[0].mesh, 7).runs.at(0), (std::vector<layout::Run>{{14, 0, 2}}));
}

}  // namespace
}  // namespace lading::layout
