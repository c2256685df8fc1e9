#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/checked.h"
#include "base/text.h"
#include "ledger/parse_fields.h"
#include "ledger/parse_parts.h"
#include "mapping/template.h"
#include "model/skeleton_json.h"
#include "plan/plan_json.h"
#include "plan/words.h"

namespace lading::ledger {
namespace {

using layout::DeviceRule;
using model::Kind;

constexpr std::array kDeviceWords = {
    std::pair<std::string_view, DeviceRule>{"rank", DeviceRule::kRankDevice},
    std::pair<std::string_view, DeviceRule>{"cpu", DeviceRule::kCpu},
};

class TensorReader {
 public:
  TensorReader(const FileNumbers& files, const Ledger& ledger, Errors& errors)
      : files_(files), ledger_(ledger), errors_(errors) {}

  Tensor read(const JsonValue& value, const std::string& path) {
    const std::uint64_t before = count(errors_);
    Tensor tensor;
    JsonFields fields(value, path, errors_);
    fields.string("name", tensor.name);
    fields.word("kind", kinds_, tensor.kind);
    fields.shape("shape", tensor.shape);
    fields.dtype("storage_dtype", tensor.storage);
    fields.optional_dtype("checkpoint_dtype", tensor.checkpoint_dtype);
    fields.word("provenance", provenances_, tensor.provenance);
    if (count(errors_) != before) return tensor;  // which fields belong is not known then
    if (!tensor.shape.size_bytes(tensor.storage)) {
      add_problem(errors_, value, fields.path_of("shape"),
                  Error(Code::kSchema, "the tensor does not fit into any memory").got(tensor.shape.text()));
    }
    if (tensor.provenance == Provenance::kFile) read_origin(fields, value, tensor);
    if (plan::has_recipe(tensor.provenance)) read_recipe(fields, value, tensor);
    if (tensor.provenance == Provenance::kAlias) fields.string("alias_of", tensor.alias_of);
    read_placement(fields, tensor);
    fields.string("rule", tensor.rule);
    fields.optional_string("mapping_rule", tensor.mapping_rule);
    fields.finish();
    return tensor;
  }

 private:
  void read_origin(JsonFields& fields, const JsonValue& value, Tensor& tensor) {
    const std::uint64_t before = count(errors_);
    read_checkpoint(fields, ledger_.adapters.size(), tensor.checkpoint);
    if (const auto expression = fields.require("expression")) {
      tensor.expression = mapping::read_plain_expression(*expression, fields.path_of("expression"), errors_);
    }
    fields.optional_each("must_equal", [&](const JsonValue& other, const std::string& path) {
      tensor.must_equal.push_back(mapping::read_plain_expression(other, path, errors_));
    });
    fields.each("sources", [&](const JsonValue& source, const std::string& path) {
      tensor.sources.push_back(read_source(source, path, tensor.checkpoint));
    });
    if (count(errors_) != before) return;
    std::vector<std::string> keys = tensor.expression.keys();
    for (const mapping::Expression& other : tensor.must_equal) {
      for (std::string& key : other.keys()) keys.push_back(std::move(key));
    }
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    const bool same = std::equal(keys.begin(), keys.end(), tensor.sources.begin(), tensor.sources.end(),
                                 [](const std::string& key, const Source& source) { return key == source.key; });
    if (!same) {
      add_problem(errors_, value, fields.path_of("sources"),
                  Error(Code::kSchema, "not the keys of the expressions")
                      .wanted(fmt::format("{} keys, sorted, each once", keys.size()))
                      .got(fmt::format("{} sources", tensor.sources.size())));
    }
  }

  Source read_source(const JsonValue& value, const std::string& path, std::uint32_t checkpoint) {
    const std::uint64_t before = count(errors_);
    Source source;
    std::string file;
    JsonFields fields(value, path, errors_);
    fields.string("key", source.key);
    fields.string("file", file);
    fields.dtype("dtype", source.dtype);
    fields.shape("shape", source.shape);
    const auto range = fields.require("bytes");
    fields.finish();
    if (!range) return source;
    const auto bytes = read_numbers(*range, fields.path_of("bytes"), errors_);
    if (!bytes || count(errors_) != before) return source;
    const auto number = files_.find(std::pair(checkpoint, std::string_view(file)));
    if (number == files_.end()) {
      add_problem(errors_, value, fields.path_of("file"),
                  Error(Code::kSchema, "not one of the files").got(quote(file)));
      return source;
    }
    source.file = number->second;
    const auto size_bytes = source.shape.size_bytes(source.dtype);
    if (bytes->size() != 2 || (*bytes)[0] > (*bytes)[1] || (*bytes)[1] > ledger_.files[source.file].size_bytes ||
        (*bytes)[1] - (*bytes)[0] != size_bytes) {
      add_problem(errors_, *range, fields.path_of("bytes"),
                  Error(Code::kSchema, "a tensor of this shape and dtype cannot be at these bytes")
                      .wanted(size_bytes ? fmt::format("begin and end, {} bytes apart, in a file of {} bytes",
                                                       *size_bytes, ledger_.files[source.file].size_bytes)
                                         : "a shape that memory can hold"));
      return source;
    }
    source.bytes = {(*bytes)[0], (*bytes)[1]};
    return source;
  }

  void read_recipe(JsonFields& fields, const JsonValue& value, Tensor& tensor) {
    const std::uint64_t before = count(errors_);
    const auto recipe = model::read_recipe(fields, "recipe", errors_);
    if (!recipe) (void)fields.require("recipe");
    if (!recipe || count(errors_) != before) return;
    // A skeleton of this tensor alone says whether the recipe makes sense for it.
    model::Tensor constructed;
    constructed.name = tensor.name;
    constructed.shape = tensor.shape;
    constructed.dtype = tensor.storage;
    constructed.init = recipe;
    Errors problems;
    if (auto skeleton = model::make_skeleton({std::move(constructed)}, {}, {}); !skeleton) {
      problems = std::move(skeleton).error();
    }
    if (!is_of_kind(*recipe, tensor.provenance)) {
      problems.add(
          Error(Code::kSchema, "the recipe does not fit the provenance").got(std::string(word(tensor.provenance))));
    }
    for (const Error& problem : problems) {
      Error located = problem;
      located.code = Code::kSchema;
      add_problem(errors_, value, fields.path_of("recipe"), std::move(located));
    }
    tensor.recipe = *recipe;
  }

  static bool is_of_kind(const model::Recipe& recipe, Provenance provenance) {
    switch (recipe.kind) {
      case model::RecipeKind::kFill: return provenance == Provenance::kFill;
      case model::RecipeKind::kHost: return provenance == Provenance::kHost;
      case model::RecipeKind::kCall: return provenance == Provenance::kCall;
      default: return provenance == Provenance::kRandom;
    }
  }

  void read_placement(JsonFields& owner, Tensor& tensor) {
    const auto value = owner.require("placement");
    if (!value) return;
    const std::uint64_t before = count(errors_);
    JsonFields fields(*value, owner.path_of("placement"), errors_);
    fields.word("device", kDeviceWords, tensor.placement.device);
    fields.optional_string("fsdp_group", tensor.placement.fsdp_group);
    tensor.placement.slots.clear();
    fields.each("slots", [&](const JsonValue& slot, const std::string& path) {
      tensor.placement.slots.push_back(read_slot(slot, path));
    });
    fields.finish();
    if (count(errors_) != before) return;
    auto& slots = tensor.placement.slots;
    std::vector<std::string_view> names;
    names.reserve(slots.size());
    for (const layout::Slot& slot : slots) names.push_back(slot.name);
    std::sort(names.begin(), names.end());
    if (slots.empty() || !slots.front().name.empty() || std::adjacent_find(names.begin(), names.end()) != names.end()) {
      add_problem(errors_, *value, fields.path_of("slots"),
                  Error(Code::kSchema, "the slots have no names to tell them apart")
                      .wanted("the ordinary slot, \"\", first, and other names once each"));
    }
    for (const layout::Slot& slot : slots) {
      for (const Error& problem : layout::check_cuts(tensor.shape, slot.cuts, ledger_.mesh)) {
        Error located = problem;
        located.code = Code::kSchema;
        add_problem(errors_, *value, fields.path_of("slots"), std::move(located));
      }
    }
  }

  layout::Slot read_slot(const JsonValue& value, const std::string& path) {
    layout::Slot slot;
    JsonFields fields(value, path, errors_);
    fields.string("name", slot.name);
    if (const auto cuts = fields.require("cuts")) {
      slot.cuts = layout::read_cuts(*cuts, fields.path_of("cuts"), {ledger_.mesh, true}, errors_);
    }
    fields.finish();
    return slot;
  }

  template <class Enum, std::size_t N>
  static std::array<std::pair<std::string_view, Enum>, N> words_of(const std::array<Enum, N>& meanings) {
    std::array<std::pair<std::string_view, Enum>, N> words;
    for (std::size_t i = 0; i < N; ++i) {
      if constexpr (std::is_same_v<Enum, Kind>) {
        words[i] = {model::word(meanings[i]), meanings[i]};
      } else {
        words[i] = {word(meanings[i]), meanings[i]};
      }
    }
    return words;
  }

  const FileNumbers& files_;
  const Ledger& ledger_;
  Errors& errors_;
  const std::array<std::pair<std::string_view, Kind>, 5> kinds_ = words_of(
      std::array{Kind::kParameter, Kind::kBuffer, Kind::kNonPersistentBuffer, Kind::kAttribute, Kind::kExtraState});
  const std::array<std::pair<std::string_view, Provenance>, 7> provenances_ =
      words_of(std::array{Provenance::kFile, Provenance::kHost, Provenance::kCall, Provenance::kFill,
                          Provenance::kRandom, Provenance::kAlias, Provenance::kKept});
};

// A tie leads to the tensor that has the source, in one step.
void check_ties(const Ledger& ledger, const JsonFields& fields, Errors& errors) {
  for (std::size_t i = 0; i < ledger.tensors.size(); ++i) {
    const Tensor& tensor = ledger.tensors[i];
    if (tensor.provenance != Provenance::kAlias) continue;
    const auto root = ledger.find(tensor.alias_of);
    if (root && ledger.tensors[*root].provenance != Provenance::kAlias && ledger.tensors[*root].shape == tensor.shape) {
      continue;
    }
    errors.add(Error(Code::kSchema, fmt::format("{}[{}].alias_of: not a tensor that it can share its value with",
                                                fields.path_of("tensors"), i))
                   .of_tensor(tensor.name)
                   .wanted("a tensor of the same shape that is not an alias")
                   .got(quote(tensor.alias_of)));
  }
}

}  // namespace

void read_tensors(JsonFields& fields, const FileNumbers& files, Ledger& ledger, Errors& errors) {
  TensorReader reader(files, ledger, errors);
  fields.each("tensors", [&](const JsonValue& value, const std::string& path) {
    ledger.tensors.push_back(reader.read(value, path));
    const std::size_t size = ledger.tensors.size();
    if (size > 1 && ledger.tensors[size - 2].name >= ledger.tensors[size - 1].name) {
      add_problem(errors, value, path + ".name",
                  Error(Code::kSchema, "the tensors are not sorted by name, each once")
                      .got(quote(ledger.tensors[size - 1].name)));
    }
  });
  if (errors.empty()) check_ties(ledger, fields, errors);
}

}  // namespace lading::ledger
