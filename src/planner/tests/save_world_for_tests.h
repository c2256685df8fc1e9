// For tests: random models in memory, cut over small meshes, and the checkpoint that they are to become, both known
// element by element from the labels of label_oracle.h.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "layout/brute_force_for_tests.h"
#include "planner/save/plan_save.h"
#include "support/label_oracle.h"

namespace lading::planner {

// Tensors "t", made of random keys, and "u" and "v", which are tied and have a key each. Elements are F16, two bytes
// wide, and stand for their labels.
class SaveWorld {
 public:
  explicit SaveWorld(std::uint64_t seed) : random_(seed) {
    auto [expression, dims] = random_.make(static_cast<int>(random_.below(4)));
    labels_["t"] = mapping::oracle::evaluate(expression, random_.sources);
    const std::vector<std::uint64_t> of_ties = {1 + random_.below(5), 1 + random_.below(4)};
    mapping::oracle::Labels ties{of_ties, std::vector<std::int64_t>(mapping::oracle::product(of_ties))};
    std::iota(ties.values.begin(), ties.values.end(), 20'000);
    labels_["u"] = labels_["v"] = ties;
    keys_ = random_.sources;
    keys_["u"] = keys_["v"] = ties;
    make_base();
    model::Tensor t = tensor("t", dims);
    skeleton_ = *model::make_skeleton({t, tensor("u", of_ties), tensor("v", of_ties)}, {{"u", "v"}}, {});
    mapping_.rules.push_back(mapping::Rule::build("t", "t", mapping::ExpressionTemplate::literal(expression)));
    make_layout(t.shape, Shape(of_ties));
    if (random_.below(3) == 0) options_.max_shard_bytes = 1 + random_.below(200);
  }

  [[nodiscard]] Result<SaveDecisions, Errors> plan() const {
    return plan_save(
        {&base_, base_.files.size() > 1 ? "model.safetensors.index.json" : "", skeleton_, layout_, mapping_, options_});
  }

  // Whether each element of each key is in the model once.
  [[nodiscard]] bool can_be_saved() const {
    std::map<std::int64_t, int> held;
    for (const std::int64_t label : labels_.at("t").values) ++held[label];
    for (const auto& [key, labels] : random_.sources) {
      for (const std::int64_t label : labels.values) {
        if (held[label] != 1) return false;
      }
    }
    return true;
  }

  // What the writes make of the files' data; nothing where they write nothing. Fails where something is written twice.
  [[nodiscard]] std::map<std::string, std::vector<std::optional<std::int64_t>>> written(
      const plan::SavePlan& save) const {
    std::map<std::string, std::vector<std::optional<std::int64_t>>> keys;
    for (const auto& [key, labels] : keys_) keys[key].resize(labels.values.size());
    for (std::size_t r = 0; r < save.ranks.size(); ++r) {
      const plan::RankPlan& rank = save.load.ranks[r];
      for (const plan::Write& write : save.ranks[r].writes) {
        const plan::Source& source = save.source_of(rank, write);
        const auto memory = memory_of(save.load, rank.destinations[write.transfer.destination], rank.rank);
        each_element(write, [&](std::uint64_t from, std::uint64_t to) {
          ASSERT_GE(to, source.bytes.begin);
          auto& element = keys[source.key].at((to - source.bytes.begin) / 2);
          EXPECT_FALSE(element.has_value()) << "written twice: " << source.key;
          element = memory.at(from / 2);
        });
      }
    }
    return keys;
  }

  [[nodiscard]] std::map<std::string, std::vector<std::optional<std::int64_t>>> wanted() const {
    std::map<std::string, std::vector<std::optional<std::int64_t>>> keys;
    for (const auto& [key, labels] : keys_) keys[key].assign(labels.values.begin(), labels.values.end());
    return keys;
  }

  std::uint64_t below(std::uint64_t bound) { return random_.below(bound); }

  // The rank's memory, label by label.
  [[nodiscard]] std::vector<std::int64_t> memory_of(const plan::Plan& load, const plan::Destination& destination,
                                                    std::uint64_t rank) const {
    const plan::Statement& statement = load.statements[destination.statement];
    const auto memory =
        layout::brute_force::memory(statement.shape, cuts_.at(statement.name), layout_.mesh, rank).value();
    std::vector<std::int64_t> labels;
    for (const auto& index : memory) labels.push_back(index ? labels_.at(statement.name).values[*index] : -9);
    return labels;
  }

  [[nodiscard]] const checkpoint::Catalog& base() const { return base_; }
  [[nodiscard]] const model::Skeleton& skeleton() const { return skeleton_; }
  [[nodiscard]] const layout::Layout& layout() const { return layout_; }
  [[nodiscard]] const mapping::Mapping& mapping() const { return mapping_; }

 private:
  using Cuts = std::vector<layout::Cut>;

  static model::Tensor tensor(std::string name, const std::vector<std::uint64_t>& dims) {
    model::Tensor tensor;
    tensor.name = std::move(name);
    tensor.shape = Shape(dims);
    tensor.dtype = DType::kF16;
    return tensor;
  }

  void make_base() {
    const std::uint32_t files = 1 + static_cast<std::uint32_t>(random_.below(2));
    for (std::uint32_t f = 0; f < files; ++f) {
      base_.files.push_back({"model-" + std::to_string(f) + ".safetensors", 0, 0, 0, {{"format", "pt"}}});
    }
    std::uint64_t at = 0;
    for (const auto& [key, labels] : keys_) {
      const std::uint64_t bytes = 2 * labels.values.size();
      const auto file = static_cast<std::uint32_t>(random_.below(files));
      base_.tensors.push_back({key, DType::kF16, {}, Shape(labels.dims), file, {at, at + bytes}});
      at += bytes;
    }
  }

  void make_layout(const Shape& of_t, const Shape& of_ties) {
    std::vector<layout::Axis> axes;
    for (std::uint64_t i = random_.below(4); i > 0; --i)
      axes.push_back({"a" + std::to_string(i), 1 + random_.below(4)});
    layout_.mesh = layout::Mesh(std::move(axes));
    cuts_["t"] = random_cuts(of_t);
    cuts_["u"] = cuts_["v"] = random_cuts(of_ties);
    for (const auto& [name, cuts] : cuts_) {
      layout::PlacementRule rule;
      rule.pattern = NamePattern::exact(name);
      rule.placement.slots.front().cuts = cuts;
      layout_.rules.push_back(std::move(rule));
    }
  }

  Cuts random_cuts(const Shape& shape) {
    Cuts cuts;
    std::size_t axis = 0;
    const std::size_t axes = layout_.mesh.axes().size();
    if (axis < axes && random_.below(6) == 0) {
      layout::Cut owner;
      owner.kind = layout::CutKind::kOwner;
      owner.axes = {axis};
      owner.owners = {random_.below(layout_.mesh.axes()[axis].size)};
      cuts.push_back(owner);
      ++axis;
    }
    for (; axis < axes && shape.rank() > 0 && random_.below(4) != 0; ++axis) {
      layout::Cut cut;
      cut.axes = {axis};
      cut.dim = random_.below(shape.rank());
      if (random_.below(3) == 0) {
        cut.kind = layout::CutKind::kStridedShard;
        cut.split_factor = 1 + random_.below(4);
      }
      cuts.push_back(cut);
    }
    if (axis < axes && random_.below(3) == 0) {
      layout::Cut flat;
      flat.kind = layout::CutKind::kFlat;
      flat.axes = {axis};
      if (random_.below(3) == 0) flat.pad_multiple = layout_.mesh.axes()[axis].size * (1 + random_.below(3));
      cuts.push_back(flat);
    }
    return cuts;
  }

  template <class Act>
  static void each_element(const plan::Write& write, const Act& act) {
    std::vector<std::uint64_t> counts;
    for (const ByteLoop& loop : write.loops) counts.push_back(loop.count);
    for (std::uint64_t i = 0; i < mapping::oracle::product(counts); ++i) {
      const auto at = mapping::oracle::unravel(i, counts);
      std::uint64_t from = write.memory_begin_bytes;
      std::uint64_t to = write.file_begin_bytes;
      for (std::size_t l = 0; l < at.size(); ++l) {
        from += at[l] * write.loops[l].source_stride_bytes;
        to += at[l] * write.loops[l].target_stride_bytes;
      }
      for (std::uint64_t e = 0; e < write.run_elems; ++e) act(from + 2 * e, to + 2 * e);
    }
  }

  mapping::oracle::Generator random_;
  std::map<std::string, mapping::oracle::Labels> labels_;  // of the model's tensors
  mapping::oracle::Sources keys_;
  checkpoint::Catalog base_;
  model::Skeleton skeleton_;
  layout::Layout layout_;
  std::map<std::string, Cuts> cuts_;
  mapping::Mapping mapping_;
  saving::Options options_;
};

}  // namespace lading::planner
