#include "layout/strategy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "layout/region.h"

namespace lading::layout {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<TensorToPlace>& model() {
  static const std::vector<TensorToPlace> tensors = {
      {"embed.weight", {25, 6}, true},   {"up.weight", {10, 6}, true}, {"up.bias", {10}, true},
      {"down.weight", {6, 10}, true},    {"down.bias", {6}, true},     {"experts.up", {4, 8, 6}, true},
      {"experts.down", {4, 6, 8}, true}, {"norm.weight", {6}, true},   {"scale", {}, true},
      {"rotary.inv_freq", {3}, false},   {"layer_scalar", {1}, false}, {"empty", {0, 4}, true},
  };
  return tensors;
}

StrategyRequest request(std::string_view strategy, std::string_view mesh) {
  StrategyRequest made;
  made.strategy = parse_strategy(strategy).value();
  if (!mesh.empty()) made.mesh = parse_mesh(mesh).value();
  return made;
}

const std::vector<Cut>& cuts(const StrategyLayout& made, std::string_view name) {
  return made.layout.placement_of(name).slots.front().cuts;
}

std::vector<std::pair<std::size_t, std::size_t>> shards(const StrategyLayout& made, std::string_view name) {
  std::vector<std::pair<std::size_t, std::size_t>> out;  // axis, dim
  for (const Cut& cut : cuts(made, name)) {
    EXPECT_EQ(cut.kind, CutKind::kShard);
    out.emplace_back(cut.axes.at(0), cut.dim);
  }
  return out;
}

StrategyLayout made(const StrategyRequest& request) {
  auto layout = make_layout(request, model());
  EXPECT_TRUE(layout.has_value()) << layout.error().front().text();
  return *std::move(layout);
}

TEST(Strategy, WordsAreReadAndWritten) {
  for (const char* const text : {"single", "ddp", "fsdp2", "hsdp", "tp", "fsdp2+tp", "zero3"}) {
    EXPECT_EQ(word(parse_strategy(text).value()), text);
  }
  EXPECT_THAT(parse_strategy("fsdp").error().expected, HasSubstr("fsdp2+tp"));
  EXPECT_THAT(parse_tp_style("column").error().expected, HasSubstr("colwise"));
  EXPECT_EQ(parse_tp_style("vocab").value(), TpStyle::kVocab);
}

TEST(Strategy, SingleAndDdpReplicateEverything) {
  for (const auto& layout : {made(request("single", "")), made(request("ddp", "dp=8"))}) {
    for (const TensorToPlace& tensor : model()) EXPECT_TRUE(cuts(layout, tensor.name).empty());
    EXPECT_TRUE(layout.notes.empty());
    EXPECT_TRUE(layout.layout.rules.empty());
  }
}

TEST(Strategy, R53_Fsdp2ShardsParametersAndNotBuffers) {
  const StrategyLayout layout = made(request("fsdp2", "dp=4"));
  for (const TensorToPlace& tensor : model()) {
    const bool sharded = tensor.is_parameter && tensor.shape.rank() > 0;
    EXPECT_EQ(cuts(layout, tensor.name).size(), sharded ? 1U : 0U) << tensor.name;
  }
  EXPECT_THAT(shards(layout, "embed.weight"), ElementsAre(std::pair<std::size_t, std::size_t>(0, 0)));
  ASSERT_EQ(layout.notes.size(), 1U);
  EXPECT_THAT(layout.notes.front(), HasSubstr("\"scale\""));
  // The exceptions by name, then the rule.
  EXPECT_EQ(layout.layout.rules.size(), 4U);
  EXPECT_EQ(layout.layout.rules.back().pattern, "*");
}

TEST(Strategy, HsdpShardsOverOneAxisOnly) {
  EXPECT_THAT(shards(made(request("hsdp", "replicate=2,shard=4")), "up.weight"),
              ElementsAre(std::pair<std::size_t, std::size_t>(1, 0)));
  EXPECT_THAT(shards(made(request("hsdp", "shard=4,replicate=2")), "up.weight"),
              ElementsAre(std::pair<std::size_t, std::size_t>(0, 0)));
}

TEST(Strategy, TpWithoutAPlanCutsMatricesByRows) {
  const StrategyLayout layout = made(request("tp", "tp=2"));
  for (const TensorToPlace& tensor : model()) {
    const bool sharded = tensor.is_parameter && tensor.shape.rank() == 2;
    EXPECT_EQ(cuts(layout, tensor.name).size(), sharded ? 1U : 0U) << tensor.name;
  }
}

TEST(Strategy, R54_ThePlanComesBeforeFsdp2) {
  StrategyRequest wanted = request("fsdp2+tp", "dp=4,tp=2");
  wanted.tp_plan = {{"down.*", TpStyle::kRowwise},
                    {"embed.weight", TpStyle::kVocab},
                    {"norm.*", TpStyle::kReplicate},
                    {"experts.down", TpStyle::kRowwise},
                    {"*", TpStyle::kColwise}};
  const StrategyLayout layout = made(wanted);
  using Pair = std::pair<std::size_t, std::size_t>;
  EXPECT_THAT(shards(layout, "up.weight"), ElementsAre(Pair(1, 0), Pair(0, 0)));
  EXPECT_THAT(shards(layout, "up.bias"), ElementsAre(Pair(1, 0), Pair(0, 0)));
  EXPECT_THAT(shards(layout, "down.weight"), ElementsAre(Pair(1, 1), Pair(0, 0)));
  EXPECT_THAT(shards(layout, "down.bias"), ElementsAre(Pair(0, 0)));
  EXPECT_THAT(shards(layout, "embed.weight"), ElementsAre(Pair(1, 0), Pair(0, 0)));
  EXPECT_THAT(shards(layout, "experts.up"), ElementsAre(Pair(1, 1), Pair(0, 0)));
  EXPECT_THAT(shards(layout, "experts.down"), ElementsAre(Pair(1, 2), Pair(0, 0)));
  EXPECT_THAT(shards(layout, "norm.weight"), ElementsAre(Pair(0, 0)));
  EXPECT_TRUE(cuts(layout, "scale").empty());
  EXPECT_TRUE(cuts(layout, "rotary.inv_freq").empty());
  EXPECT_EQ(layout.notes.size(), 2U);
  // n=25 over dp=4, tp=2: rank (3, 0) has row 12 alone.
  const Region region = region_of({25, 6}, cuts(layout, "embed.weight"), layout.layout.mesh, 6);
  EXPECT_THAT(region.runs.at(0), ElementsAre(layout::Run{12, 0, 1}));
}

TEST(Strategy, R56_Zero3IsFlatOverAllAxes) {
  const StrategyLayout layout = made(request("zero3", "node=2,local=3"));
  for (const TensorToPlace& tensor : model()) {
    const auto& list = cuts(layout, tensor.name);
    ASSERT_EQ(list.size(), tensor.is_parameter ? 1U : 0U) << tensor.name;
    if (list.empty()) continue;
    EXPECT_THAT(list[0].axes, ElementsAre(0, 1));
  }
  EXPECT_EQ(region_of({}, cuts(layout, "scale"), layout.layout.mesh, 0).owned_elems(), 1U);
  EXPECT_EQ(layout.notes.size(), 1U);
}

TEST(Strategy, AMeshThatDoesNotFitIsRefusedWithARemedy) {
  for (const auto& [strategy, mesh] : std::vector<std::pair<std::string_view, std::string_view>>{{"single", "dp=2"},
                                                                                                 {"ddp", "tp=2"},
                                                                                                 {"ddp", ""},
                                                                                                 {"fsdp2", "dp=2,tp=2"},
                                                                                                 {"fsdp2", "x=2"},
                                                                                                 {"hsdp", "dp=4"},
                                                                                                 {"tp", "dp=2"},
                                                                                                 {"fsdp2+tp", "dp=2"},
                                                                                                 {"fsdp2+tp", "tp=2"},
                                                                                                 {"zero3", ""}}) {
    const auto layout = make_layout(request(strategy, mesh), model());
    ASSERT_FALSE(layout.has_value()) << strategy << " " << mesh;
    EXPECT_EQ(layout.error().front().code, Code::kLayout);
    EXPECT_THAT(layout.error().front().remedy, HasSubstr("Use a mesh such as"));
  }
}

TEST(Strategy, R43_PlanRulesMustDecideAboutSomething) {
  StrategyRequest wanted = request("tp", "tp=2");
  wanted.tp_plan = {{"*", TpStyle::kColwise}, {"up.*", TpStyle::kRowwise}, {"rotary.*", TpStyle::kColwise}};
  const auto layout = make_layout(wanted, model());
  ASSERT_FALSE(layout.has_value());
  EXPECT_EQ(layout.error().size(), 2U);
  EXPECT_EQ(layout.error().front().rule, "R43");
  wanted.strategy = Strategy::kDdp;
  wanted.mesh = parse_mesh("dp=2").value();
  EXPECT_FALSE(make_layout(wanted, model()).has_value());
}

TEST(Strategy, R27_UnitsAreTheUsersToName) {
  for (const auto& layout : {made(request("fsdp2", "dp=2")), made(request("hsdp", "replicate=2,shard=2")),
                             made(request("fsdp2+tp", "dp=4,tp=2"))}) {
    for (const PlacementRule& rule : layout.layout.rules) EXPECT_EQ(rule.placement.fsdp_group, "") << rule.pattern.text;
  }
}

TEST(Strategy, ATensorIsListedOnce) {
  EXPECT_FALSE(make_layout(request("ddp", "dp=2"), {{"a", {1}, true}, {"a", {1}, true}}).has_value());
  EXPECT_TRUE(make_layout(request("fsdp2", "dp=2"), {}).has_value());
}

TEST(Strategy, TheLayoutSurvivesJson) {
  for (const auto& layout : {made(request("fsdp2+tp", "dp=4,tp=2")), made(request("zero3", "dp=8"))}) {
    const auto document = JsonDocument::parse(JsonBuffer::copy_of(layout_json(layout.layout)));
    EXPECT_EQ(parse_layout(*document).value(), layout.layout);
  }
}

TEST(Strategy, ANameWithAStarIsNoPattern) {
  auto wanted = request("tp", "tp=2");
  wanted.tp_plan = {{NamePattern::exact("w*"), TpStyle::kRowwise}, {"*", TpStyle::kColwise}};
  const auto made = make_layout(wanted, {{"w*", {4, 4}, true}, {"wa", {4, 4}, true}, {"wb", {4, 4}, true}});
  ASSERT_TRUE(made.has_value()) << made.error().front().text();
  EXPECT_EQ(made->layout.placement_of("w*").slots.front().cuts.front().dim, 1U);
  EXPECT_EQ(made->layout.placement_of("wa").slots.front().cuts.front().dim, 0U);
}

}  // namespace
}  // namespace lading::layout
