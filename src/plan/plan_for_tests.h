// A plan that has something of everything, made by hand; and a plan's text, parsed.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "base/json_reader.h"
#include "plan/plan.h"

namespace lading::plan {

inline JsonDocument parsed(const std::string& text) {
  auto document = JsonDocument::parse(JsonBuffer::copy_of(text));
  EXPECT_TRUE(document.has_value()) << text;
  return *std::move(document);
}

inline Statement& add_named_statement(Plan& plan, std::string name, Provenance provenance, Shape shape) {
  Statement s;
  s.name = std::move(name);
  s.provenance = provenance;
  s.shape = std::move(shape);
  s.rule = "R1";
  s.reason = "because";
  s.dtype_reason = "so";
  plan.statements.push_back(std::move(s));
  return plan.statements.back();
}

inline void add_built_statement(Plan& plan) {
  using mapping::Expression;
  Statement& built = add_named_statement(plan, "a.built", Provenance::kFile, {8, 6});
  built.expression = Expression::pad(
      Expression::permute(Expression::concat(0, {Expression::slice(Expression::source("k.0"), 0, 0, 2),
                                                 Expression::reshape(Expression::source("k.1"), {4, 6})}),
                          {0, 1}),
      0, 8, -1.5);
  built.checkpoint_dtype = DType::kBF16;
  built.compute = DType::kBF16;
  built.mapping_rule = "fuse";
  layout::Cut shard;
  shard.axes = {1};
  layout::Cut flat;
  flat.kind = layout::CutKind::kFlat;
  flat.axes = {0};
  built.placement.slots = {{"", {shard}}, {"secondary", {shard, flat}}};
  built.placement.fsdp_group = "layers";
}

inline void add_all_statements(Plan& plan) {
  using mapping::Expression;
  add_built_statement(plan);
  Statement& call = add_named_statement(plan, "b.call", Provenance::kCall, {3});
  call.recipe.kind = model::RecipeKind::kCall;
  call.recipe.inputs = {"a.built"};
  Statement& fill = add_named_statement(plan, "c.fill", Provenance::kFill, {3});
  fill.recipe.value = 0.1;
  add_named_statement(plan, "d.kept", Provenance::kKept, {3}).kept_device = "cuda:1";
  Statement& random = add_named_statement(plan, "e.random", Provenance::kRandom, {5, 3});
  random.recipe.kind = model::RecipeKind::kNormal;
  random.recipe.zero_row = 2;
  random.placement.device = layout::DeviceRule::kCpu;
  Statement& tied = add_named_statement(plan, "f.tied", Provenance::kFile, {4, 6});
  tied.expression = Expression::source("k.2");
  tied.must_equal = {Expression::source("k.3")};
  Statement& alias = add_named_statement(plan, "g.alias", Provenance::kAlias, {4, 6});
  alias.alias_of = "f.tied";
}

inline IndexedVector<DestinationId, Destination> destinations_of_everything() {
  IndexedVector<DestinationId, Destination> destinations;
  Destination d;
  d.statement = d.root = 5;
  d.device = "cuda:3";
  d.buffer_bytes = 96;
  d.owned_elems = 24;
  d.transfers = {{2, 148, 0, 12, {{2, 48, 48}}, 0}, {SourceId::none(), 0, 96, 4, {}, 0.5}};
  d.aliases = {6};
  destinations.push_back(d);
  d = {};
  d.region = 1;
  d.device = "cuda:3";
  d.flat_parameter = "unit";
  d.buffer_bytes = 64;
  destinations.push_back(d);
  destinations.push_back(d);
  d.flat_parameter.clear();
  d.device = "cpu";
  destinations.push_back(d);
  return destinations;
}

inline RankPlan rank_of_everything() {
  RankPlan rank;
  rank.rank = 3;
  rank.regions.resize(2);
  rank.regions[0].runs = {{{0, 0, 4}}, {{0, 0, 6}}};
  rank.regions[0].local_shape = {4, 6};
  rank.regions[0].buffer_elems = 24;
  rank.regions[1] = rank.regions[0];
  rank.regions[1].runs[0] = {{4, 0, 4}};
  rank.destinations = destinations_of_everything();
  rank.reads = {{1, 148, 96, 1, 0, {{0, 0, 0}}}, {0, 100, 4, 3, 8, {{1, 2, 0}}}};
  rank.read_bytes = 108;
  rank.owned_bytes = 224;
  rank.staging_bytes = 4096;
  return rank;
}

inline Plan plan_of_everything() {
  Plan plan;
  plan.files = {{"a.safetensors", 1000}, {"b.safetensors", 2000}};
  plan.sources = {{"k.0", 0, {100, 148}, DType::kBF16, {4, 6}},
                  {"k.1", 1, {100, 148}, DType::kBF16, {4, 6}},
                  {"k.2", 1, {148, 244}, DType::kF32, {4, 6}}};
  plan.mesh = layout::Mesh({{"dp", 2}, {"tp", 2}});
  plan.devices.type = layout::DeviceType::kCuda;
  plan.devices.per_node = 4;
  plan.seed = 5;
  plan.budget_bytes = 1 << 20;
  add_all_statements(plan);
  plan.call_order = {1};
  plan.ignored_keys = {{"old", "rule"}};
  plan.unexpected_keys = {"odd"};
  plan.warnings.add(Error(Code::kPlan, "beware"));
  plan.ranks = {rank_of_everything()};
  return plan;
}

}  // namespace lading::plan
