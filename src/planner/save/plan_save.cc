#include "planner/save/plan_save.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/text.h"
#include "checkpoint/header.h"
#include "checkpoint/index.h"
#include "planner/input_checks.h"
#include "planner/planner.h"
#include "planner/save/choose_writers.h"
#include "planner/save/output_files.h"
#include "planner/save/output_keys.h"

namespace lading::planner {
namespace {

const saving::Metadata kTorchMetadata = {{"format", "pt"}};

class SavePlanner {
 public:
  explicit SavePlanner(const SaveInputs& inputs) : inputs_(inputs) {}

  Result<SaveDecisions, Errors> run() {
    LADING_ASSIGN_OR_RETURN(OutputKeys keys, choose_keys(inputs_));
    if (keys.keys.empty()) {
      return fail(Errors(Error(Code::kPlan, "there is nothing to save: no tensor of the model has a key")
                             .try_this("Check the skeleton, and what is left out.")));
    }
    if (auto errors = wrong_file_names(); !errors.empty()) return fail(std::move(errors));
    const IndexFacts index{index_name(), inputs_.options.index_metadata};
    LADING_ASSIGN_OR_RETURN(OutputFiles files, lay_out_files(shards_of(keys.keys), index));
    std::vector<KeptKey> kept = named(keys.kept_keys);
    LADING_ASSIGN_OR_RETURN(Plan load, plan_load(keys, kept, files.catalog));
    LADING_ASSIGN_OR_RETURN(std::vector<plan::RankWrites> writes, choose_writers(load));
    SaveDecisions decisions;
    for (const plan::PlannedFile& file : load.files) decisions.plan.headers.push_back(files.headers[file.catalog_file]);
    decisions.plan.index_name = std::move(files.index_name);
    decisions.plan.index = std::move(files.index);
    decisions.plan.load = std::move(load);
    decisions.plan.ranks = std::move(writes);
    decisions.left_out = std::move(keys.left_out);
    decisions.not_saved = std::move(keys.not_saved);
    decisions.dropped_keys = std::move(keys.dropped_keys);
    decisions.kept_keys = std::move(kept);
    return decisions;
  }

 private:
  [[nodiscard]] bool keeps_the_bases_files() const {
    return inputs_.base != nullptr && !inputs_.options.max_shard_bytes;
  }

  [[nodiscard]] std::string index_name() const { return keeps_the_bases_files() ? inputs_.base_index_name : ""; }

  [[nodiscard]] const saving::Metadata& metadata_of(std::size_t base_file) const {
    if (inputs_.options.metadata) return *inputs_.options.metadata;
    return inputs_.base != nullptr ? inputs_.base->files[base_file].metadata : kTorchMetadata;
  }

  [[nodiscard]] bool names_its_files() const {
    const auto& keys = inputs_.options.keys;
    return inputs_.base == nullptr && keys && !keys->empty() && !keys->front().file.empty();
  }

  // A name, not a path: nothing is written elsewhere than in the new directory.
  [[nodiscard]] Errors wrong_file_names() const {
    Errors errors;
    if (inputs_.base != nullptr || !inputs_.options.keys) return errors;
    for (const saving::Key& key : *inputs_.options.keys) {
      const bool is_name = key.file.find('/') == std::string::npos && !checkpoint::why_not_a_shard_name(key.file);
      if (key.file.empty() ? !names_its_files() : names_its_files() && is_name) continue;
      errors.add(Error(Code::kPlan, "the key has no name of a file")
                     .of_tensor(key.key)
                     .by_rule("R68")
                     .wanted(fmt::format("a name that ends in {}, of all keys or of none", checkpoint::kFileEnding))
                     .got(quote(key.file))
                     .try_this("Correct the name of the file."));
    }
    return errors;
  }

  [[nodiscard]] std::vector<OutputShard> shards_of(const std::vector<OutputKey>& keys) const {
    if (names_its_files()) return shards_by_name(keys, *inputs_.options.keys, metadata_of(0));
    if (!keeps_the_bases_files()) {
      return fill_shards(keys, inputs_.options.max_shard_bytes.value_or(saving::kDefaultMaxShardBytes), metadata_of(0));
    }
    std::map<std::uint32_t, OutputShard> shards;  // by file of the base
    for (const OutputKey& key : keys) {
      const std::uint32_t file = inputs_.base->find(key.key)->file;
      OutputShard& shard = shards[file];
      if (shard.keys.empty()) {
        shard.name = inputs_.base->files[file].name;
        shard.metadata = metadata_of(file);
      }
      shard.keys.push_back(key);
    }
    std::vector<OutputShard> list;
    for (auto& [file, shard] : shards) list.push_back(std::move(shard));
    return list;
  }

  [[nodiscard]] std::vector<KeptKey> named(const std::vector<OutputKey>& keys) const {
    std::vector<KeptKey> kept;
    for (const OutputKey& key : keys) {
      std::string name = "base:" + key.key;
      while (inputs_.skeleton.find(name) != nullptr) name = "base:" + name;
      kept.push_back({key.key, std::move(name), key.dtype, key.shape});
    }
    return kept;
  }

  // The load of the new checkpoint into the memory that the model has.
  Result<Plan, Errors> plan_load(const OutputKeys& keys, const std::vector<KeptKey>& kept,
                                 const checkpoint::Catalog& catalog) const {
    std::vector<model::Tensor> tensors;
    std::map<std::uint32_t, std::vector<std::string>> classes;
    mapping::Mapping mapping;
    for (const SavedTensor& saved : keys.tensors) {
      model::Tensor& tensor = tensors.emplace_back();
      tensor.name = saved.tensor->name;
      tensor.kind = can_be_in_a_file(saved.tensor->kind) ? saved.tensor->kind : model::Kind::kBuffer;
      tensor.shape = saved.tensor->shape;
      tensor.dtype = saved.tensor->dtype;
      tensor.requires_grad = saved.tensor->requires_grad;
      tensor.presence = model::Presence::kEmpty;  // memory of a fixed dtype, which a load would fill
      tensor.device = saved.tensor->device.empty() ? "cpu" : saved.tensor->device;
      if (saved.tensor->tie_class) classes[*saved.tensor->tie_class].push_back(tensor.name);
      if (saved.expression != nullptr) {
        mapping.rules.push_back(mapping::Rule::build_one("save " + tensor.name, tensor.name, *saved.expression));
      }
    }
    for (const KeptKey& key : kept) {
      model::Tensor& tensor = tensors.emplace_back();
      tensor.name = key.tensor;
      tensor.kind = model::Kind::kBuffer;
      tensor.shape = key.shape;
      tensor.dtype = key.dtype;
      tensor.presence = model::Presence::kEmpty;
      tensor.device = "cpu";
      mapping.rules.push_back(
          mapping::Rule::build_one("keep " + key.key, key.tensor, mapping::Expression::source(key.key)));
    }
    std::vector<std::vector<std::string>> ties;
    for (auto& [number, names] : classes) {
      if (names.size() > 1) ties.push_back(std::move(names));
    }
    LADING_ASSIGN_OR_RETURN(const model::Skeleton skeleton,
                            model::make_skeleton(std::move(tensors), std::move(ties), {}));
    policy::Policy policy;
    policy.cast = policy::Cast::kDestination;
    std::vector<std::uint64_t> ranks(inputs_.layout.mesh.ranks());
    std::iota(ranks.begin(), ranks.end(), std::uint64_t{0});
    return make_plan({catalog, skeleton, layout_of(skeleton, kept), mapping, policy}, ranks);
  }

  // Without rules that are only about tensors that are not saved: a rule that matches nothing is refused.
  // Kept keys are on one rank each, so that ranks have about as many bytes of them.
  [[nodiscard]] layout::Layout layout_of(const model::Skeleton& saved, const std::vector<KeptKey>& kept) const {
    const auto is_matched = [](const NamePattern& pattern, const model::Skeleton& skeleton) {
      if (pattern.is_one_name()) return skeleton.find(pattern.text) != nullptr;
      return std::any_of(skeleton.tensors.begin(), skeleton.tensors.end(),
                         [&](const model::Tensor& tensor) { return pattern.matches(tensor.name); });
    };
    layout::Layout layout = inputs_.layout;
    std::erase_if(layout.rules, [&](const layout::PlacementRule& rule) {
      return !is_matched(rule.pattern, saved) && is_matched(rule.pattern, inputs_.skeleton);
    });
    std::vector<layout::PlacementRule> own;
    std::vector<std::uint64_t> bytes(layout.mesh.ranks());
    std::vector<std::size_t> axes(layout.mesh.axes().size());
    std::iota(axes.begin(), axes.end(), std::size_t{0});
    for (const KeptKey& key : kept) {
      const auto least = std::min_element(bytes.begin(), bytes.end());
      *least += 1 + key.shape.num_elems().value_or(0) * bits(key.dtype) / 8;
      layout::PlacementRule& rule = own.emplace_back(layout::PlacementRule{NamePattern::exact(key.tensor), {}});
      rule.placement.device = layout::DeviceRule::kCpu;
      if (axes.empty()) continue;
      const auto owner = static_cast<std::uint64_t>(least - bytes.begin());
      rule.placement.slots.front().cuts.push_back({.kind = layout::CutKind::kOwner, .axes = axes, .owners = {owner}});
    }
    layout.rules.insert(layout.rules.begin(), own.begin(), own.end());
    return layout;
  }

  const SaveInputs& inputs_;
};

}  // namespace

Result<SaveDecisions, Errors> plan_save(const SaveInputs& inputs) { return SavePlanner(inputs).run(); }

}  // namespace lading::planner
