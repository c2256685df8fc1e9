// The whole planner against an oracle that moves element labels one by one: random sources, expressions,
// meshes, cuts and ranks. LADING_ORACLE_CASES makes it longer (docs/how-it-works/oracle.md has a long run).
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checker/checker.h"
#include "layout/brute_force_for_tests.h"
#include "mapping/template.h"
#include "planner/planner.h"
#include "support/label_oracle.h"

namespace lading::planner {
namespace {

using layout::Cut;
using layout::CutKind;
using mapping::oracle::Generator;
using mapping::oracle::Labels;

// A random world: one tensor made of a few sources, cut over a small mesh.
struct RandomWorld {
  checkpoint::Catalog catalog;
  model::Skeleton skeleton;
  layout::Layout layout;
  mapping::Mapping mapping;
  policy::Policy policy;
  Labels labels;                                    // what the tensor must hold
  std::map<std::string, std::int64_t> first_label;  // of each source
};

Cut random_cut(Generator& random, const Shape& shape, std::size_t axis) {
  Cut cut;
  cut.axes = {axis};
  cut.dim = random.below(shape.rank());
  if (random.below(3) == 0) {
    cut.kind = CutKind::kStridedShard;
    cut.split_factor = 1 + random.below(4);
  }
  return cut;
}

std::vector<Cut> random_cuts(Generator& random, const Shape& shape, const layout::Mesh& mesh) {
  std::vector<Cut> cuts;
  std::size_t axis = 0;
  const std::size_t axes = mesh.axes().size();
  if (axis < axes && random.below(6) == 0) {
    Cut owner;
    owner.kind = CutKind::kOwner;
    owner.axes = {axis};
    owner.owners = {random.below(mesh.axes()[axis].size)};
    cuts.push_back(owner);
    ++axis;
  }
  for (; axis < axes && shape.rank() > 0 && random.below(4) != 0; ++axis)
    cuts.push_back(random_cut(random, shape, axis));
  if (axis < axes && random.below(3) == 0) {
    Cut flat;
    flat.kind = CutKind::kFlat;
    flat.axes = {axis};
    if (random.below(3) == 0) flat.pad_multiple = mesh.axes()[axis].size * (1 + random.below(3));
    cuts.push_back(flat);
  }
  return cuts;
}

RandomWorld make_world(std::uint64_t seed) {
  Generator random(seed);
  auto [expression, dims] = random.make(static_cast<int>(random.below(4)));
  RandomWorld world;
  world.labels = mapping::oracle::evaluate(expression, random.sources);
  checkpoint::CatalogFile file{"model.safetensors", 0, 0, random.sources.size(), {}};
  std::uint64_t at = random.below(100);
  for (const auto& [key, labels] : random.sources) {
    const std::uint64_t bytes = 2 * labels.values.size();
    world.catalog.tensors.push_back({key, DType::kI16, {}, Shape(labels.dims), 0, {at, at + bytes}});
    world.first_label.emplace(key, labels.values.empty() ? 0 : labels.values.front());
    at += bytes;
  }
  file.size_bytes = at;
  world.catalog.files.push_back(std::move(file));

  model::Tensor tensor;
  tensor.name = "t";
  tensor.shape = Shape(dims);
  tensor.dtype = DType::kI16;
  world.skeleton = *model::make_skeleton({tensor}, {}, {});
  world.mapping.rules.push_back(mapping::Rule::build("t", "t", mapping::ExpressionTemplate::literal(expression)));

  std::vector<layout::Axis> axes;
  for (std::uint64_t i = random.below(4); i > 0; --i) axes.push_back({"a" + std::to_string(i), 1 + random.below(4)});
  world.layout.mesh = layout::Mesh(std::move(axes));
  layout::PlacementRule rule;
  rule.pattern = "t";
  rule.placement.slots.front().cuts = random_cuts(random, tensor.shape, world.layout.mesh);
  world.layout.rules.push_back(std::move(rule));
  return world;
}

constexpr std::int64_t kPadding = -9;

// What a rank's buffer must hold, label by label; nothing if it has none.
std::optional<std::vector<std::int64_t>> wanted(const RandomWorld& world, std::uint64_t rank) {
  const auto& cuts = world.layout.rules.front().placement.slots.front().cuts;
  const auto memory = layout::brute_force::memory(world.skeleton.tensors.front().shape, cuts, world.layout.mesh, rank);
  if (!memory) return std::nullopt;
  std::vector<std::int64_t> labels;
  for (const auto& index : *memory) labels.push_back(index ? world.labels.values[*index] : kPadding);
  return labels;
}

// What the plan's transfers do to a buffer. Every source element is its label, two bytes wide.
std::vector<std::int64_t> run(const RandomWorld& world, const Plan& plan, const Destination& destination) {
  std::vector<std::int64_t> buffer(destination.buffer_bytes / 2, mapping::oracle::kUnwritten);
  for (const Transfer& transfer : destination.transfers) {
    std::vector<std::uint64_t> counts;
    for (const ByteLoop& loop : transfer.loops) counts.push_back(loop.count);
    for (std::uint64_t i = 0; i < mapping::oracle::product(counts); ++i) {
      const auto at = mapping::oracle::unravel(i, counts);
      std::uint64_t from = transfer.source_begin_bytes;
      std::uint64_t to = transfer.target_begin_bytes;
      for (std::size_t l = 0; l < at.size(); ++l) {
        from += at[l] * transfer.loops[l].source_stride_bytes;
        to += at[l] * transfer.loops[l].target_stride_bytes;
      }
      for (std::uint64_t e = 0; e < transfer.run_elems; ++e, from += 2, to += 2) {
        std::int64_t& element = buffer.at(to / 2);
        EXPECT_EQ(element, mapping::oracle::kUnwritten) << "written twice";
        if (transfer.is_fill()) {
          element = transfer.fill == 0.5 ? mapping::oracle::kFillLabel : kPadding;
        } else {
          const Source& source = plan.sources[transfer.source];
          EXPECT_GE(from, source.bytes.begin);
          EXPECT_LT(from, source.bytes.end);
          element = world.first_label.at(source.key) + static_cast<std::int64_t>((from - source.bytes.begin) / 2);
        }
      }
    }
  }
  return buffer;
}

std::uint64_t cases() {
  const char* wanted_cases = std::getenv("LADING_ORACLE_CASES");
  return wanted_cases == nullptr ? 100000 : std::strtoull(wanted_cases, nullptr, 10);
}

TEST(PlannerOracle, R11_R41_EveryElementOfEveryRankIsWhereTheOraclePutsIt) {
  std::uint64_t compared = 0;
  std::uint64_t refused = 0;
  for (std::uint64_t seed = 0; compared < cases(); ++seed) {
    const RandomWorld world = make_world(seed);
    std::vector<std::uint64_t> ranks(world.layout.mesh.ranks());
    std::iota(ranks.begin(), ranks.end(), std::uint64_t{0});
    const auto plan = make_plan({world.catalog, world.skeleton, world.layout, world.mapping, world.policy}, ranks);
    if (!plan) {
      // A source that an expression slices away whole leaves keys that nobody reads; nothing else is refused.
      ++refused;
      ASSERT_LT(refused * 3, compared + 3000) << "seed " << seed << ": " << plan.error().front().text();
      continue;
    }
    for (const RankPlan& rank_plan : plan->ranks) {
      ++compared;
      const auto want = wanted(world, rank_plan.rank);
      ASSERT_EQ(rank_plan.destinations.size(), want ? 1U : 0U) << "seed " << seed << " rank " << rank_plan.rank;
      if (!want) continue;
      ASSERT_EQ(run(world, *plan, rank_plan.destinations.front()), *want)
          << "seed " << seed << " rank " << rank_plan.rank;
    }
    const auto proof = checker::check_plan(*plan);
    ASSERT_TRUE(proof.has_value()) << "seed " << seed << ": " << proof.error().front().text();
  }
  RecordProperty("compared", static_cast<int>(compared));
  RecordProperty("refused", static_cast<int>(refused));
}

}  // namespace
}  // namespace lading::planner
