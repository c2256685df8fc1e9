// For tests: small worlds for the planner. A World is written down in a few lines and planned for all ranks;
// what comes back has passed the checker. What a rank holds is told element by element, so that expectations
// are lists that a person can write.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checker/checker.h"
#include "mapping/template.h"
#include "plan/words.h"
#include "planner/planner.h"

namespace lading::planner::world {

using layout::Cut;
using layout::CutKind;
using model::Kind;
using model::Presence;
using model::RecipeKind;
using model::Tensor;
using Ranks = std::vector<std::uint64_t>;

inline Tensor tensor(Kind kind, std::string name, Shape shape, DType dtype = DType::kF32) {
  Tensor made;
  made.name = std::move(name);
  made.kind = kind;
  made.shape = std::move(shape);
  made.dtype = dtype;
  return made;
}
inline Tensor param(std::string name, Shape shape, DType dtype = DType::kF32) {
  return tensor(Kind::kParameter, std::move(name), std::move(shape), dtype);
}
inline Tensor buffer(std::string name, Shape shape, DType dtype = DType::kF32) {
  return tensor(Kind::kBuffer, std::move(name), std::move(shape), dtype);
}
inline Tensor table(std::string name, Shape shape, DType dtype = DType::kF32) {
  return tensor(Kind::kNonPersistentBuffer, std::move(name), std::move(shape), dtype);
}
inline Tensor real(Tensor made, std::string device = "cpu") {
  made.presence = Presence::kReal;
  made.device = std::move(device);
  return made;
}
inline Tensor allocated(Tensor made, std::string device = "cpu") {
  made.presence = Presence::kEmpty;
  made.device = std::move(device);
  return made;
}
inline Tensor trained(Tensor made) {
  made.requires_grad = true;
  return made;
}
inline model::Recipe fill(double value) { return {.kind = RecipeKind::kFill, .value = value}; }
inline model::Recipe normal(double std) { return {.kind = RecipeKind::kNormal, .std = std}; }
inline model::Recipe host() { return {.kind = RecipeKind::kHost}; }
inline model::Recipe call(std::vector<std::string> inputs) {
  return {.kind = RecipeKind::kCall, .inputs = std::move(inputs)};
}
inline Tensor derived(Tensor made, model::Recipe recipe = host()) {
  made.derivation = std::move(recipe);
  return made;
}
inline Tensor init(Tensor made, model::Recipe recipe) {
  made.init = std::move(recipe);
  return made;
}
inline Tensor adapter(Tensor made) {
  made.adapter = true;
  return made;
}

inline Cut shard(std::size_t axis, std::size_t dim) {
  Cut cut;
  cut.axes = {axis};
  cut.dim = dim;
  return cut;
}
inline Cut strided(std::size_t axis, std::size_t dim, std::uint64_t split_factor) {
  Cut cut = shard(axis, dim);
  cut.kind = CutKind::kStridedShard;
  cut.split_factor = split_factor;
  return cut;
}
inline Cut flat(std::vector<std::size_t> axes, std::uint64_t pad_multiple = 0) {
  Cut cut;
  cut.kind = CutKind::kFlat;
  cut.axes = std::move(axes);
  cut.pad_multiple = pad_multiple;
  return cut;
}
inline Cut flat_parameter(std::size_t axis, std::string name, std::uint64_t offset, std::uint64_t elems) {
  Cut cut;
  cut.kind = CutKind::kFlatGroup;
  cut.axes = {axis};
  cut.flat_parameter = std::move(name);
  cut.group_offset_elems = offset;
  cut.group_elems = elems;
  return cut;
}
inline Cut owner(std::size_t axis, std::vector<std::uint64_t> owners) {
  Cut cut;
  cut.kind = CutKind::kOwner;
  cut.axes = {axis};
  cut.owners = std::move(owners);
  return cut;
}

struct Key {
  std::string name;
  Shape shape;
  DType dtype = DType::kF32;
  std::uint32_t file = 0;
  std::string unknown_dtype = {};
};

struct AdapterFiles {
  std::vector<Key> keys;
  std::map<std::string, std::string, std::less<>> names = {};  ///< of the model, by key
};

struct World {
  std::vector<Key> keys;
  std::vector<Tensor> tensors;
  std::vector<std::vector<std::string>> ties = {};
  std::vector<model::Pin> pins = {};
  layout::Layout layout = {};
  mapping::Mapping mapping = {};
  policy::Policy policy = {};
  std::optional<checkpoint::Quantization> quantization = {};
  std::vector<AdapterFiles> adapters = {};

  /// Keys lie in their files one behind the other, in the order of their names, from byte 100 on.
  [[nodiscard]] checkpoint::Catalog catalog() const {
    checkpoint::Catalog made = catalog_of(keys);
    made.quantization = quantization;
    for (const AdapterFiles& adapter : adapters) made.append(catalog_of(adapter.keys));
    return made;
  }

  [[nodiscard]] static checkpoint::Catalog catalog_of(std::vector<Key> sorted) {
    checkpoint::Catalog made;
    std::sort(sorted.begin(), sorted.end(), [](const Key& a, const Key& b) { return a.name < b.name; });
    for (const Key& key : sorted) {
      while (made.files.size() <= key.file)
        made.files.push_back({fmt::format("model-{}.safetensors", made.files.size()), 100, 100, 0, {}});
      checkpoint::CatalogFile& file = made.files[key.file];
      const std::uint64_t begin = file.size_bytes;
      const auto bytes = key.shape.size_bytes(key.dtype);
      LADING_CHECK(bytes.has_value());
      file.size_bytes += *bytes;
      ++file.tensors;
      const auto dtype = key.unknown_dtype.empty() ? std::optional(key.dtype) : std::nullopt;
      made.tensors.push_back({key.name, dtype, key.unknown_dtype, key.shape, key.file, {begin, file.size_bytes}});
    }
    return made;
  }

  World& mesh(std::vector<layout::Axis> axes) {
    layout.mesh = layout::Mesh(std::move(axes));
    return *this;
  }
  /// The tensors that the pattern matches are cut so.
  World& place(std::string pattern, std::vector<Cut> cuts) {
    layout::PlacementRule rule{std::move(pattern), {}};
    rule.placement.slots.front().cuts = std::move(cuts);
    layout.rules.push_back(std::move(rule));
    return *this;
  }
  World& cuda(std::uint64_t per_node) {
    layout.devices.type = layout::DeviceType::kCuda;
    layout.devices.per_node = per_node;
    return *this;
  }
  World& build(std::string to, const mapping::Expression& expression) {
    mapping.rules.push_back(mapping::Rule::build("build " + to, to, mapping::ExpressionTemplate::literal(expression)));
    return *this;
  }

  [[nodiscard]] PlanInputs inputs(const checkpoint::Catalog& made, const model::Skeleton& skeleton) const {
    PlanInputs inputs{made, skeleton, layout, mapping, policy};
    for (const AdapterFiles& adapter : adapters) inputs.adapters.push_back({adapter.names, "an/adapter"});
    return inputs;
  }

  /// Made by the planner, and proved by the checker.
  [[nodiscard]] Result<Plan, Errors> plan(const Ranks& ranks) const {
    LADING_ASSIGN_OR_RETURN(const model::Skeleton skeleton, model::make_skeleton(tensors, ties, pins));
    const checkpoint::Catalog made = catalog();
    LADING_ASSIGN_OR_RETURN(Plan plan, make_plan(inputs(made, skeleton), ranks));
    LADING_TRY(checker::check_plan(plan));
    return plan;
  }
  [[nodiscard]] Result<Plan, Errors> plan() const { return plan(all_ranks()); }
  [[nodiscard]] Ranks all_ranks() const {
    Ranks ranks(layout.mesh.ranks());
    std::iota(ranks.begin(), ranks.end(), std::uint64_t{0});
    return ranks;
  }
};

inline std::string all_text(const Errors& errors) {
  std::string text;
  for (const Error& error : errors) text += error.text() + "\n";
  return text;
}

/// "R39 w; R41 b": the rule and tensor of every refusal, in order; or "accepted".
inline std::string verdict(const Result<Plan, Errors>& plan) {
  if (plan) return "accepted";
  std::string text;
  for (const Error& error : plan.error()) {
    if (!text.empty()) text += "; ";
    if (error.code == Code::kPlanCheck) text += "checker: ";
    text += error.rule.empty() ? "no rule" : error.rule;
    if (error.tensor) text += " " + *error.tensor;
  }
  return text;
}
inline std::string verdict(const World& world) { return verdict(world.plan()); }

/// "file R38": where a tensor's value comes from, and the rule that decided; or why there is no plan.
inline std::string source_of(const Result<Plan, Errors>& plan, std::string_view name) {
  if (!plan) return "refused: " + verdict(plan);
  const Statement* s = plan->find(name);
  return s == nullptr ? "not stated" : fmt::format("{} {}", word(s->provenance), s->rule);
}
inline std::string source_of(const World& world, std::string_view name) { return source_of(world.plan(), name); }

/// One parameter, w, and its key.
inline World one(Shape shape, DType dtype = DType::kF32) { return {{{"w", shape, dtype}}, {param("w", shape, dtype)}}; }

/// A tensor beside w, which the checkpoint always has.
inline World with(Tensor t, std::vector<Key> more_keys = {}) {
  World world{{{"w", {2}}}, {param("w", {2}), std::move(t)}};
  for (Key& key : more_keys) world.keys.push_back(std::move(key));
  return world;
}

inline const RankPlan* rank_of(const Plan& plan, std::uint64_t rank) {
  const auto found =
      std::find_if(plan.ranks.begin(), plan.ranks.end(), [&](const RankPlan& r) { return r.rank == rank; });
  return found == plan.ranks.end() ? nullptr : &*found;
}

/// The memory that a rank has for a tensor under this name, its own or one that it shares.
inline const Destination* find(const Plan& plan, std::uint64_t rank, std::string_view name,
                               std::string_view slot = "") {
  const RankPlan* on = rank_of(plan, rank);
  if (on == nullptr) return nullptr;
  for (const Destination& d : on->destinations) {
    const auto is_named = [&](StatementId s) { return plan.statements[s].name == name; };
    if (d.slot == slot && (is_named(d.statement) || std::any_of(d.aliases.begin(), d.aliases.end(), is_named)))
      return &d;
  }
  return nullptr;
}

inline std::string device_of(const Plan& plan, std::uint64_t rank, std::string_view name) {
  const Destination* d = find(plan, rank, name);
  return d == nullptr ? "nowhere" : d->device;
}

/// Transfers element by element of the buffer: "w:3" is element 3 of the key w, row-major; "=0" a constant;
/// "." nothing; "w:3+w:4" both; "w@1:3" is of the first adapter's key w.
inline std::string shown(const Plan& plan, const Destination& d, const std::vector<Transfer>& transfers) {
  const std::uint64_t width = bits(plan.statements[d.statement].storage);
  std::vector<std::string> elements(d.buffer_bytes * 8 / width);
  for (const Transfer& t : transfers) {
    for (std::uint64_t i = 0; i < t.elems(); ++i) {
      std::uint64_t from_bits = t.source_begin_bytes * 8;
      std::uint64_t to_bits = t.target_begin_bytes * 8 + i % t.run_elems * width;
      std::uint64_t rest = i / t.run_elems;
      for (std::size_t l = t.loops.size(); l-- > 0; rest /= t.loops[l].count) {
        from_bits += rest % t.loops[l].count * t.loops[l].source_stride_bytes * 8;
        to_bits += rest % t.loops[l].count * t.loops[l].target_stride_bytes * 8;
      }
      std::string& element = elements.at(to_bits / width);
      if (!element.empty()) element += "+";
      if (t.is_fill()) {
        element += fmt::format("={}", t.fill);
      } else {
        const Source& source = plan.sources[t.source];
        const std::uint64_t at = (from_bits - source.bytes.begin * 8) / bits(source.dtype) + i % t.run_elems;
        const std::uint32_t checkpoint = plan.files[source.file].checkpoint;
        element += checkpoint == 0 ? fmt::format("{}:{}", source.key, at)
                                   : fmt::format("{}@{}:{}", source.key, checkpoint, at);
      }
    }
  }
  std::string text;
  for (const std::string& element : elements) text += (text.empty() ? "" : " ") + (element.empty() ? "." : element);
  return text;
}

/// What the transfers write.
inline std::string held(const Plan& plan, std::uint64_t rank, std::string_view name, std::string_view slot = "") {
  const Destination* d = find(plan, rank, name, slot);
  return d == nullptr ? "absent" : shown(plan, *d, d->transfers);
}

/// What the elements are compared with, other key by other key.
inline std::vector<std::string> compared(const Plan& plan, std::uint64_t rank, std::string_view name) {
  std::vector<std::string> all;
  const Destination* d = find(plan, rank, name);
  if (d == nullptr) return {"absent"};
  for (const auto& comparison : d->comparisons) all.push_back(shown(plan, *d, comparison));
  return all;
}

/// "w:0 w:1 w:4": what held() says of these elements of one key.
inline std::string of(std::string_view key, const std::vector<std::uint64_t>& elements) {
  std::string text;
  for (const std::uint64_t element : elements) text += fmt::format("{}{}:{}", text.empty() ? "" : " ", key, element);
  return text;
}

/// Everything that a plan says, so that two can be compared. Not JSON, on purpose: that has tests of its own.
inline std::string everything(const Plan& plan) {
  std::string text;
  const auto add = [&](const auto&... parts) { ((text += fmt::format("{} ", parts)), ...); };
  for (const PlannedFile& f : plan.files) add("file", f.name, f.size_bytes);
  for (const Source& s : plan.sources)
    add("\nsource", s.key, s.file.number(), s.bytes.begin, s.bytes.end, name(s.dtype));
  for (const Statement& s : plan.statements) {
    add("\nstatement", s.name, s.shape.text(), word(s.provenance), s.rule, s.reason, s.dtype_reason, s.alias_of);
    add(name(s.storage), name(s.compute), s.mapping_rule, s.kept_device, s.recipe.value, s.recipe.std);
    if (s.provenance == Provenance::kFile) add(s.expression.text());
    for (const auto& other : s.must_equal) add("=", other.text());
  }
  for (const StatementId i : plan.call_order) add("\ncall", i.number());
  for (const auto& [key, rule] : plan.ignored_keys) add("\nignored", key, rule);
  for (const std::string& key : plan.unexpected_keys) add("\nunexpected", key);
  add("\n", all_text(plan.warnings), plan.seed, plan.budget_bytes);
  for (const RankPlan& r : plan.ranks) {
    add("\nrank", r.rank, r.read_bytes, r.owned_bytes, r.staging_bytes);
    for (const Read& read : r.reads) add("read", read.file.number(), read.begin_bytes, read.size_bytes, read.count);
    for (const Destination& d : r.destinations) {
      const std::string& name = plan.statements[d.statement].name;
      add("\n ", name, d.slot, d.device, d.flat_parameter, d.buffer_bytes, d.owned_elems,
          held(plan, r.rank, name, d.slot));
      for (const StatementId alias : d.aliases) add("alias", alias.number());
    }
  }
  return text;
}

}  // namespace lading::planner::world
