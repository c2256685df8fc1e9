#include "planner/quantized/quantized_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/quantized.h"
#include "planner/nothing_in_common.h"
#include "planner/quantized/packed_weights.h"

namespace lading::planner {
namespace {

using checkpoint::CatalogTensor;
using checkpoint::QuantizedKeys;

constexpr std::string_view kRemedy =
    "Load a checkpoint that is not quantized, or a model that has tensors for the scales. docs/guides/quantized.md "
    "lists "
    "the schemes that lading dequantizes.";

constexpr std::string_view kRemedyOfConfig =
    "Get the config.json that belongs to the files, or load a checkpoint that is not quantized.";
constexpr std::string_view kRemedyOfKeep =
    "Omit \"quantized\": \"keep\", so that lading dequantizes, or load a model that has tensors for the scales.";

// "layers.3.experts.12.w" to "layers.*.experts.*.w": tensors of one kind are told together.
std::string part_pattern_of(std::string_view name) {
  std::string pattern;
  std::size_t begin = 0;
  while (begin <= name.size()) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    const bool is_number = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    if (begin > 0) pattern += '.';
    pattern += is_number ? "*" : std::string(part);
    begin = end + 1;
  }
  return pattern;
}

// "layers.3" of "layers.3.weight".
std::string_view module_of(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

// Payloads of one pattern that have the same trouble.
struct AlikePayloads {
  const Statement* first = nullptr;
  const CatalogTensor* payload = nullptr;  // of the first
  std::vector<std::string> left_over;      // of the first
  std::string scheme;
  Reason reason;  // why the first is not dequantized, or ""
  std::uint64_t count = 0;

  /// Whether it is the first one, of which more is to be said.
  bool add(const Statement& statement, const CatalogTensor& one) {
    if (count++ > 0) return false;
    first = &statement;
    payload = &one;
    return true;
  }
};
using PayloadGroups =
    std::map<std::pair<std::string, std::string>, AlikePayloads>;  // by pattern of the tensor and of its problem

std::string said_by(const checkpoint::Catalog& catalog) {
  if (!catalog.quantization) return "";
  const checkpoint::Quantization& said = *catalog.quantization;
  if (said.method.empty()) return "config.json has a quantization_config";
  const std::string format = said.format.empty() ? "" : fmt::format(", format {}", quote(said.format));
  return fmt::format("config.json says quant_method {}{}", quote(said.method), format);
}

std::string names_of(const AlikePayloads& group) {
  if (group.count == 1) return quote(group.payload->name);
  return fmt::format("{} keys like {}", group.count, quote(group.payload->name));
}

std::string remedy_of(const PlanInputs& inputs, const AlikePayloads& group) {
  if (inputs.policy.quantized == policy::Quantized::kKeep) return std::string(kRemedyOfKeep);
  return std::string(group.reason.is_in_config ? kRemedyOfConfig : kRemedy);
}

Error error_of(const PlanInputs& inputs, const AlikePayloads& group, const std::string& pattern) {
  std::string scales;
  for (const std::string& name : group.left_over) scales += (scales.empty() ? "" : ", ") + quote(name);
  const std::string said = said_by(inputs.catalog);
  const std::string message =
      group.count == 1 ? fmt::format("a quantized tensor ({}) would be loaded without its scales", group.scheme)
                       : fmt::format("{} quantized tensors {} ({}) would be loaded without their scales", group.count,
                                     quote(pattern), group.scheme);
  return Error(Code::kDType, message)
      .of_tensor(group.first->name)
      .in_file(inputs.catalog.files[group.payload->file].name)
      .by_rule("R48")
      .wanted(fmt::format("a tensor of the model for each of {}", scales))
      .got(fmt::format("{} in {}, whose scales are not read{}{}{}{}", names_of(group), name(*group.payload->dtype),
                       said.empty() ? "" : "; ", said, group.reason.text.empty() ? "" : "; ", group.reason.text))
      .try_this(remedy_of(inputs, group));
}

// The numbers of all keys that a statement is made of, and compared with.
std::set<SourceId> sources_of(const Decisions& decisions, StatementId i) {
  std::set<SourceId> numbers;
  const auto add = [&](const FilePieces& file) {
    numbers.insert(file.source_numbers.begin(), file.source_numbers.end());
  };
  add(decisions.tensors[i].pieces);
  std::for_each(decisions.tensors[i].compared.begin(), decisions.tensors[i].compared.end(), add);
  return numbers;
}

// Whether the statement stands, and its value comes from the base checkpoint, the only one that QuantizedKeys looks at.
bool reads_base(const Decisions& decisions, StatementId i) {
  const Statement& s = decisions.plan.statements[i];
  return s.provenance == Provenance::kFile && s.checkpoint == 0 && !decisions.tensors[i].is_refused;
}

// All statements of these tie classes, which are named by their heads.
void refuse_ties(const std::set<StatementId>& heads, Decisions& decisions) {
  for (const StatementId i : decisions.tensors.ids()) {
    if (heads.contains(decisions.tensors[i].head)) decisions.tensors[i].is_refused = true;
  }
}

// Payloads that are dequantized wherever a model has a tensor of their name: if it has none, that is what is wrong.
std::set<std::string, std::less<>> readable_payloads(const PlanInputs& inputs, const PackedWeights& packed) {
  std::set<std::string, std::less<>> readable;
  if (inputs.policy.quantized == policy::Quantized::kKeep) return readable;
  for (const CatalogTensor& tensor : inputs.catalog.tensors_of(0)) {
    if (tensor.dtype && checkpoint::is_low_precision(*tensor.dtype) && bits(*tensor.dtype) == 8)
      readable.insert(tensor.name);
  }
  for (const auto& [name, weight] : packed.by_name) readable.insert(weight.payload);
  return readable;
}

bool has_payloads(const Decisions& decisions) {
  const auto& sources = decisions.plan.sources;
  return std::any_of(sources.begin(), sources.end(),
                     [](const Source& source) { return checkpoint::is_payload_dtype(source.dtype); });
}

// That are read, or handed in by the caller.
std::set<std::string_view> bound_keys(const Decisions& decisions) {
  std::set<std::string_view> bound;
  for (const Source& source : decisions.plan.sources) {
    if (decisions.plan.files[source.file].checkpoint == 0) bound.insert(source.key);
  }
  for (const auto& [key, why] : decisions.plan.ignored_keys) {
    if (why == "external") bound.insert(key);
  }
  return bound;
}

// Where other payloads have scales, one without them has lost them.
bool has_scaled_floats(const checkpoint::Catalog& catalog, const QuantizedKeys& keys) {
  const auto tensors = catalog.tensors_of(0);
  return std::any_of(tensors.begin(), tensors.end(), [&](const CatalogTensor& tensor) {
    return tensor.dtype && checkpoint::is_low_precision(*tensor.dtype) && !keys.companions_of(tensor).empty();
  });
}

Error lost_scales_of(const PlanInputs& inputs, const AlikePayloads& group) {
  const Error about = Error(Code::kDType, "a quantized tensor has no scales in the checkpoint")
                          .of_tensor(group.first->name)
                          .in_file(inputs.catalog.files[group.payload->file].name)
                          .by_rule("R48")
                          .wanted("a scale beside it, such as a key that ends with \"_scale\" or \"_scale_inv\"");
  const std::string said = inputs.catalog.quantization ? said_by(inputs.catalog) : "other tensors have scales";
  const std::string found = fmt::format("{} in {}", names_of(group), name(*group.payload->dtype));
  if (!group.left_over.empty()) {
    std::string others;
    for (const std::string& name : group.left_over) others += (others.empty() ? "" : ", ") + quote(name);
    return Error(about)
        .got(fmt::format("{}, and beside it {}, which lading does not know{}", found, others,
                         inputs.catalog.quantization ? "; " + said : ""))
        .try_this("If it is a scale of this weight, say so with \"dequantize\" in a mapping document.");
  }
  return Error(about)
      .got(fmt::format("{}; {}", found, said))
      .try_this(
          "Download the checkpoint again: a shard may be missing. If the scale has an unusual name, give it in a "
          "\"dequantize\" rule (docs/schema/mapping.md). If the weights need no scales, remove quantization_config "
          "from "
          "config.json.");
}

}  // namespace

QuantizedProblems check_companions(const PlanInputs& inputs, const NotDequantized& reasons, Decisions& decisions) {
  QuantizedProblems problems;
  if (inputs.is_part_of_model || !has_payloads(decisions)) return problems;
  const QuantizedKeys keys(inputs.catalog);
  const std::set<std::string_view> bound = bound_keys(decisions);
  PayloadGroups groups;
  std::set<StatementId> refused;  // heads of tie classes
  for (const StatementId i : decisions.plan.statements.ids()) {
    const Statement& s = decisions.plan.statements[i];
    if (!reads_base(decisions, i)) continue;
    for (const SourceId number : sources_of(decisions, i)) {
      const CatalogTensor& payload = *inputs.catalog.find(decisions.plan.sources[number].key);
      const auto companions = keys.companions_of(payload);
      std::vector<std::string> left_over;
      for (const CatalogTensor* one : companions) {
        if (bound.contains(one->name)) continue;
        left_over.push_back(one->name);
        problems.left_over.insert(one->name);
      }
      if (left_over.empty()) continue;
      refused.insert(decisions.tensors[i].head);
      std::string what = part_pattern_of(payload.name);
      for (const std::string& name : left_over) what += "\n" + part_pattern_of(name);
      AlikePayloads& group = groups[{part_pattern_of(s.name), std::move(what)}];
      if (!group.add(s, payload)) continue;
      group.scheme = keys.scheme_of(payload, companions);
      group.left_over = std::move(left_over);
      if (const auto why = reasons.find(payload.name); why != reasons.end()) group.reason = why->second;
      if (inputs.policy.quantized == policy::Quantized::kKeep) {
        group.reason = {"\"quantized\" is \"keep\", so lading does not dequantize"};
      }
    }
  }
  for (const auto& [pattern, group] : groups) problems.errors.add(error_of(inputs, group, pattern.first));
  refuse_ties(refused, decisions);
  if (!problems.errors.empty()) decisions.tells_of_payloads = true;
  return problems;
}

Errors check_lost_scales(const PlanInputs& inputs, Decisions& decisions) {
  Errors errors;
  const auto may_have_lost = [](const Source& one) { return !one.scaling && checkpoint::is_low_precision(one.dtype); };
  const auto& sources = decisions.plan.sources;
  if (std::none_of(sources.begin(), sources.end(), may_have_lost)) return errors;
  if (!inputs.catalog.quantization && inputs.is_part_of_model) return errors;
  const QuantizedKeys keys(inputs.catalog);
  const std::set<std::string_view> bound = bound_keys(decisions);
  const bool is_said = inputs.catalog.quantization || has_scaled_floats(inputs.catalog, keys);
  PayloadGroups groups;
  std::set<StatementId> refused;  // heads of tie classes
  for (const StatementId i : decisions.plan.statements.ids()) {
    const Statement& s = decisions.plan.statements[i];
    if (!reads_base(decisions, i)) continue;
    if (!policy::is_ordinary_float(inputs.skeleton.tensors[i.number()].dtype)) continue;
    for (const SourceId number : sources_of(decisions, i)) {
      const Source& source = decisions.plan.sources[number];
      if (!may_have_lost(source)) continue;
      const CatalogTensor& payload = *inputs.catalog.find(source.key);
      if (!keys.companions_of(payload).empty()) continue;
      // Without a config, it may be a number of its own.
      std::vector<std::string> suspects;
      for (const CatalogTensor* one : keys.suspects_of(payload)) {
        if (!bound.contains(one->name)) suspects.push_back(one->name);
      }
      if (!is_said && suspects.empty()) continue;
      refused.insert(decisions.tensors[i].head);
      AlikePayloads& group = groups[{part_pattern_of(s.name), part_pattern_of(source.key)}];
      if (group.add(s, payload)) group.left_over = std::move(suspects);
    }
  }
  for (const auto& [pattern, group] : groups) errors.add(lost_scales_of(inputs, group));
  refuse_ties(refused, decisions);
  if (!errors.empty()) decisions.tells_of_payloads = true;
  return errors;
}

Errors check_payload_casts(const PlanInputs& inputs, Decisions& decisions) {
  Errors errors;
  if (!inputs.catalog.quantization || !has_payloads(decisions)) return errors;
  std::optional<QuantizedKeys> keys;  // of large checkpoints, they take long to find
  PayloadGroups groups;
  for (const StatementId i : decisions.plan.statements.ids()) {
    const Statement& s = decisions.plan.statements[i];
    if (!reads_base(decisions, i)) continue;
    for (const SourceId number : sources_of(decisions, i)) {
      const Source& source = decisions.plan.sources[number];
      const bool is_payload = checkpoint::is_low_precision(source.dtype) ||
                              (checkpoint::is_payload_dtype(source.dtype) && checkpoint::is_weight_name(source.key));
      if (!is_payload || source.dtype == s.storage || source.scaling) continue;
      const CatalogTensor& payload = *inputs.catalog.find(source.key);
      if (!keys) keys.emplace(inputs.catalog);
      if (!keys->companions_of(payload).empty()) continue;  // which are loaded too
      groups[{part_pattern_of(s.name), part_pattern_of(source.key)}].add(s, payload);
    }
  }
  for (const auto& [pattern, group] : groups) {
    errors.add(
        Error(Code::kDType, "the weights of a quantized checkpoint would be cast without a scale")
            .of_tensor(group.first->name)
            .in_file(inputs.catalog.files[group.payload->file].name)
            .by_rule("R48")
            .wanted(fmt::format("{}, as in the checkpoint, or a scale", name(*group.payload->dtype)))
            .got(fmt::format("{} as {}; {}", names_of(group), name(group.first->storage), said_by(inputs.catalog)))
            .try_this("Load a checkpoint that is not quantized, or keep the dtype of the file (\"dtype\": \"auto\")."));
  }
  if (!errors.empty()) decisions.tells_of_payloads = true;
  return errors;
}

Errors name_unread_payloads(const PlanInputs& inputs, const mapping::Resolution& names, const NotDequantized& reasons,
                            const Errors& refused) {
  const QuantizedKeys keys(inputs.catalog);
  const PackedWeights packed = find_packed_weights(inputs.catalog);
  const auto readable = readable_payloads(inputs, packed);
  AlikePayloads group;
  const auto add = [&](const CatalogTensor* payload) {
    if (payload == nullptr || (readable.contains(payload->name) && !reasons.contains(payload->name))) return;
    const auto companions = keys.companions_of(*payload);
    if (companions.empty() || group.count++ > 0) return;
    group.payload = payload;
    group.scheme = keys.scheme_of(*payload, companions);
    if (const auto why = packed.refused.find(payload->name); why != packed.refused.end()) group.reason = why->second;
    if (const auto why = reasons.find(payload->name); why != reasons.end()) group.reason = why->second;
  };
  std::set<std::string_view> seen;
  std::set<std::string_view> modules;
  for (const Error& error : refused) {
    if (error.code == Code::kPlan && error.tensor && seen.insert(*error.tensor).second) {
      modules.insert(module_of(*error.tensor));
      add(inputs.catalog.find(*error.tensor));
    }
  }
  // Where unexpected keys are allowed, no error names the payload: of a module that lacks its weight, or of all.
  if (group.count == 0) {
    const bool is_any = have_nothing_in_common(inputs, names);
    for (const CatalogTensor& tensor : inputs.catalog.tensors_of(0)) {
      if (is_any || (packed.refused.contains(tensor.name) && modules.contains(module_of(tensor.name)))) add(&tensor);
    }
  }
  if (group.count == 0) return {};
  const std::string said = said_by(inputs.catalog);
  return Error(Code::kDType, fmt::format("the checkpoint is quantized ({}), but the model is not", group.scheme))
      .of_tensor(group.payload->name)
      .in_file(inputs.catalog.files[group.payload->file].name)
      .by_rule("R48")
      .wanted("a tensor of the model for each payload and each scale")
      .got(fmt::format("{} in {}, which no tensor of the model uses{}{}{}{}", names_of(group),
                       name(*group.payload->dtype), said.empty() ? "" : "; ", said,
                       group.reason.text.empty() ? "" : "; ", group.reason.text))
      .try_this(remedy_of(inputs, group));
}

}  // namespace lading::planner
