#include "planner/convert/adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>

#include "base/text.h"
#include "mapping/pattern.h"
#include "policy/policy.h"

namespace lading::planner {
namespace {

constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kA = ".lora_A.weight";
constexpr std::string_view kB = ".lora_B.weight";

// Members that change no number of a merge, whatever they are. Those of an initialisation do not: what it makes of the
// base is in init_lora_weights.
constexpr std::array<std::string_view, 26> kHarmless = {"auto_mapping",
                                                        "base_model_name_or_path",
                                                        "corda_config",
                                                        "ephemeral_gpu_offload",
                                                        "eva_config",
                                                        "exclude_modules",
                                                        "inference_mode",
                                                        "layers_pattern",
                                                        "layers_to_transform",
                                                        "loftq_config",
                                                        "lora_dropout",
                                                        "lora_ga_config",
                                                        "megatron_config",
                                                        "megatron_core",
                                                        "peft_type",
                                                        "peft_version",
                                                        "qalora_group_size",
                                                        "revision",
                                                        "runtime_config",
                                                        "target_modules",
                                                        "task_type",
                                                        "init_lora_weights",
                                                        "r",
                                                        "lora_alpha",
                                                        "use_rslora",
                                                        "fan_in_fan_out"};
// Ways to begin with that leave the base's weights as they are.
constexpr std::array<std::string_view, 4> kHarmlessBeginnings = {"gaussian", "eva", "orthogonal", "lora_ga"};

Error refused(std::string message) {
  return Error(Code::kPlan, std::move(message)).by_rule("R65").try_this("Merge it with PEFT.");
}

class ConfigParser {
 public:
  Result<AdapterConfig, Errors> run(const JsonValue& root) {
    if (!root.is_object()) {
      return fail(
          Errors(refused("adapter_config.json is not a JSON object").try_this("Pass an adapter that PEFT saved.")));
    }
    const auto kind = root.find("peft_type");
    if (!kind || !kind->is_string() || kind->text() != "LORA") {
      return fail(Errors(refused("the adapter is not a LoRA")
                             .wanted("\"peft_type\": \"LORA\"")
                             .got(kind ? kind->found() : "no such member")));
    }
    check_beginning(root.find("init_lora_weights"));
    for (const JsonMember member : root) read(member);
    if (!errors_.empty()) return fail(std::move(errors_));
    return std::move(config_);
  }

 private:
  static bool is_nothing(const JsonValue& value) {
    const std::string_view text = value.text();
    return value.kind() == JsonKind::kNull || value.kind() == JsonKind::kFalse ||
           ((value.is_object() || value.is_array()) && value.size() == 0) || (value.is_string() && text == "none");
  }

  void check_beginning(const std::optional<JsonValue>& value) {
    if (!value || value->kind() == JsonKind::kTrue || is_nothing(*value)) return;
    std::string word(value->text());
    std::transform(word.begin(), word.end(), word.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
    const auto& harmless = kHarmlessBeginnings;
    if (value->is_string() && std::find(harmless.begin(), harmless.end(), word) != harmless.end()) return;
    errors_.add(refused("the adapter was trained over a base that its initialisation has changed")
                    .got(fmt::format("\"init_lora_weights\": {}", value->found()))
                    .try_this("Convert the adapter with PEFT: save_pretrained with "
                              "path_initial_model_for_weight_conversion."));
  }

  void read(const JsonMember& member) {
    const JsonValue& value = member.value;
    if (member.key == "r") return number(member, config_.rank);
    if (member.key == "lora_alpha") return number(member, config_.alpha);
    if (member.key == "use_rslora") return flag(member, config_.use_rslora);
    if (member.key == "fan_in_fan_out") return flag(member, config_.fan_in_fan_out);
    if (member.key == "rank_pattern") return patterns(member, config_.rank_pattern);
    if (member.key == "alpha_pattern") return patterns(member, config_.alpha_pattern);
    if (std::find(kHarmless.begin(), kHarmless.end(), member.key) != kHarmless.end() || is_nothing(value)) return;
    errors_.add(refused(fmt::format("lading does not merge adapters with {}", quote(member.key))).got(value.found()));
  }

  void number(const JsonMember& member, double& out) {
    const std::string_view text = member.value.text();
    double found = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), found);
    const bool is_number = member.value.kind() == JsonKind::kNumber && error == std::errc() &&
                           end == text.data() + text.size() && std::isfinite(found);
    if (is_number) {
      out = found;
    } else {
      errors_.add(refused(fmt::format("{} of adapter_config.json is not a number", quote(member.key)))
                      .got(member.value.found())
                      .try_this("Pass an adapter that PEFT saved."));
    }
  }

  void flag(const JsonMember& member, bool& out) {
    out = member.value.kind() == JsonKind::kTrue;
    if (out || is_nothing(member.value)) return;
    errors_.add(refused(fmt::format("{} of adapter_config.json is neither true nor false", quote(member.key)))
                    .got(member.value.found())
                    .try_this("Pass an adapter that PEFT saved."));
  }

  void patterns(const JsonMember& member, std::vector<std::pair<std::string, double>>& out) {
    if (member.value.kind() == JsonKind::kNull) return;
    if (!member.value.is_object()) {
      errors_.add(refused(fmt::format("{} of adapter_config.json is not an object", quote(member.key)))
                      .got(member.value.found())
                      .try_this("Pass an adapter that PEFT saved."));
      return;
    }
    for (const JsonMember one : member.value) {
      number(one, out.emplace_back(std::string(one.key), 0).second);
    }
  }

  AdapterConfig config_;
  Errors errors_;
};

class Merger {
 public:
  Merger(const checkpoint::Catalog& adapter, const AdapterConfig& config, model::Skeleton& skeleton)
      : adapter_(adapter), config_(config), skeleton_(skeleton) {}

  Result<std::vector<Merge>, Errors> run() {
    compile(config_.rank_pattern, ranks_);
    compile(config_.alpha_pattern, alphas_);
    for (const checkpoint::CatalogTensor& tensor : adapter_.tensors) place(tensor);
    for (const auto& [module, pair] : pairs_) merge(module, pair);
    check_orientation();
    if (errors_.empty() && merges_.empty()) {
      errors_.add(refused("the adapter has no tensors").try_this("Pass an adapter that PEFT saved."));
    }
    if (!errors_.empty()) return fail(std::move(errors_));
    LADING_TRY(add_factors());
    return std::move(merges_);
  }

 private:
  using CatalogTensor = checkpoint::CatalogTensor;
  struct Pair {
    const CatalogTensor* a = nullptr;
    const CatalogTensor* b = nullptr;
  };
  using Patterns = std::vector<std::pair<mapping::Pattern, double>>;

  // As PEFT matches them: wholly, behind a dot or from the beginning.
  void compile(const std::vector<std::pair<std::string, double>>& from, Patterns& out) {
    for (const auto& [text, value] : from) {
      auto pattern = mapping::Pattern::compile(fmt::format(R"((.*\.)?({}))", text));
      if (pattern) {
        out.emplace_back(*std::move(pattern), value);
      } else {
        errors_.add(
            refused(fmt::format("lading does not understand the pattern {} of adapter_config.json", quote(text)))
                .got(pattern.error().found));
      }
    }
  }

  static double value_for(const Patterns& patterns, std::string_view module, double otherwise) {
    const auto found = std::find_if(patterns.begin(), patterns.end(), [&](auto& p) { return p.first.matches(module); });
    return found == patterns.end() ? otherwise : found->second;
  }

  void place(const CatalogTensor& tensor) {
    const std::string_view key = tensor.name;
    const bool is_a = key.ends_with(kA);
    if (!key.starts_with(kPrefix) || (!is_a && !key.ends_with(kB)) || key.size() <= kPrefix.size() + kA.size()) {
      errors_.add(refused("lading does not merge this key of an adapter")
                      .of_tensor(key)
                      .wanted(fmt::format("{}MODULE{}, or the same with lora_B", kPrefix, kA))
                      .try_this("Merge it with PEFT: the adapter has more than LoRA matrices of Linear modules."));
      return;
    }
    Pair& pair = pairs_[key.substr(kPrefix.size(), key.size() - kPrefix.size() - kA.size())];
    (is_a ? pair.a : pair.b) = &tensor;
    const bool is_good = tensor.shape.rank() == 2 && tensor.dtype && policy::is_ordinary_float(*tensor.dtype) &&
                         *tensor.dtype != DType::kF64;
    if (is_good) return;
    errors_.add(
        refused("the key of the adapter is not a matrix of F32, F16 or BF16")
            .of_tensor(key)
            .got(fmt::format("{} {}", tensor.dtype ? name(*tensor.dtype) : "an unknown dtype", tensor.shape.text())));
  }

  void merge(std::string_view module, const Pair& pair) {
    if (pair.a == nullptr || pair.b == nullptr) {
      const CatalogTensor& one = pair.a != nullptr ? *pair.a : *pair.b;
      errors_.add(refused("the other matrix of this one is missing in the adapter")
                      .of_tensor(one.name)
                      .try_this("Pass the whole adapter."));
      return;
    }
    if (pair.a->shape.rank() != 2 || pair.b->shape.rank() != 2) return;  // told
    const std::string wanted = fmt::format("{}.weight", module);
    const model::Tensor* weight = skeleton_.find(wanted);
    if (weight == nullptr) {
      errors_.add(refused("the adapter has a matrix for a weight that the new checkpoint does not have")
                      .of_tensor(pair.a->name)
                      .wanted(fmt::format("a tensor {}", quote(wanted)))
                      .try_this("Give the weight this name (--rename, --mapping), or pass the base of this adapter."));
      return;
    }
    add(module, *weight, pair);
  }

  void add(std::string_view module, const model::Tensor& weight, const Pair& pair) {
    const std::uint64_t rank = pair.a->shape[0];
    const std::uint64_t inputs = pair.a->shape[1];
    const std::uint64_t outputs = pair.b->shape[0];
    const double said = value_for(ranks_, module, config_.rank);
    if (pair.b->shape[1] != rank || static_cast<double>(rank) != said || rank == 0) {
      errors_.add(refused("the rank of the adapter's matrices is not that of its config")
                      .of_tensor(pair.a->name)
                      .wanted(fmt::format("a rank of {}", said))
                      .got(fmt::format("{} and {}", pair.a->shape.text(), pair.b->shape.text()))
                      .try_this("Pass the adapter_config.json that belongs to the adapter."));
      return;
    }
    const bool is_plain = weight.shape == Shape{outputs, inputs};
    const bool is_transposed = weight.shape == Shape{inputs, outputs};
    if (!is_plain && !is_transposed) {
      errors_.add(refused("the weight has another shape than the adapter's matrices make")
                      .of_tensor(weight.name)
                      .wanted(Shape{outputs, inputs}.text())
                      .got(weight.shape.text())
                      .try_this("Pass the base of this adapter."));
      return;
    }
    if (!policy::is_ordinary_float(weight.dtype) || weight.dtype == DType::kF64) {
      errors_.add(refused("an adapter cannot be added to a weight of this dtype")
                      .of_tensor(weight.name)
                      .wanted("F32, F16 or BF16")
                      .got(std::string(name(weight.dtype)))
                      .try_this("Pass --dtype, or merge it with PEFT."));
      return;
    }
    const double alpha = value_for(alphas_, module, config_.alpha);
    Merge& merge = merges_.emplace_back();
    merge.tensor = weight.name;
    merge.a = pair.a->name;
    merge.b = pair.b->name;
    merge.scale = alpha / (config_.use_rslora ? std::sqrt(said) : said);
    merge.is_transposed = is_plain && is_transposed ? config_.fan_in_fan_out : is_transposed;
    merge.dtype = weight.dtype;
    if (is_plain && is_transposed) square_.push_back(&merge - merges_.data());
    has_plain_ = has_plain_ || !is_transposed;
    has_transposed_ = has_transposed_ || !is_plain;
  }

  // PEFT corrects the flag module by module, and saves what the last one made of it.
  void check_orientation() {
    const bool is_doubtful = config_.fan_in_fan_out ? has_plain_ : has_transposed_;
    if (!is_doubtful) return;
    for (const std::ptrdiff_t i : square_) {
      errors_.add(refused("whether this square weight is transposed cannot be told: others contradict the config")
                      .of_tensor(merges_[static_cast<std::size_t>(i)].tensor)
                      .got(fmt::format("\"fan_in_fan_out\": {}", config_.fan_in_fan_out)));
    }
  }

  Result<void, Errors> add_factors() {
    std::vector<model::Tensor> tensors = std::move(skeleton_.tensors);
    std::map<std::string_view, const Merge*> by_tensor;
    for (const Merge& merge : merges_) by_tensor.emplace(merge.tensor, &merge);
    for (model::Tensor& tensor : tensors) {
      if (by_tensor.contains(tensor.name)) tensor.dtype = DType::kF32;
    }
    for (const CatalogTensor& factor : adapter_.tensors) {
      model::Tensor& tensor = tensors.emplace_back();
      tensor.name = factor.name;
      tensor.shape = factor.shape;
      tensor.dtype = DType::kF32;
      tensor.adapter = true;
      tensor.presence = model::Presence::kEmpty;
      tensor.device = "cpu";
    }
    LADING_ASSIGN_OR_RETURN(skeleton_, model::make_skeleton(std::move(tensors), {}, {}));
    return {};
  }

  const checkpoint::Catalog& adapter_;
  const AdapterConfig& config_;
  model::Skeleton& skeleton_;
  Patterns ranks_;
  Patterns alphas_;
  std::map<std::string_view, Pair> pairs_;  // by module
  std::vector<Merge> merges_;
  std::vector<std::ptrdiff_t> square_;  // into merges_: shapes that do not tell
  bool has_plain_ = false;
  bool has_transposed_ = false;
  Errors errors_;
};

}  // namespace

Result<AdapterConfig, Errors> parse_adapter_config(const JsonDocument& document) {
  return ConfigParser().run(document.root());
}

Result<std::vector<Merge>, Errors> merge_adapter(const checkpoint::Catalog& adapter, const AdapterConfig& config,
                                                 model::Skeleton& skeleton) {
  return Merger(adapter, config, skeleton).run();
}

}  // namespace lading::planner
