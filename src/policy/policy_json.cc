// `lading.policy/1`, both ways. docs/schema/policy.md is the reference.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/enumerator.h"
#include "base/json_fields.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "policy/policy.h"

namespace lading::policy {
namespace {

constexpr std::string_view kSchemaName = "lading.policy/1";

constexpr std::array kCasts = {
    std::pair<std::string_view, Cast>{"promote", Cast::kPromote},
    std::pair<std::string_view, Cast>{"exact", Cast::kExact},
    std::pair<std::string_view, Cast>{"destination", Cast::kDestination},
};
constexpr std::array kComputeRecords = {
    std::pair<std::string_view, ComputeRecord>{"checkpoint", ComputeRecord::kCheckpoint},
    std::pair<std::string_view, ComputeRecord>{"ignore", ComputeRecord::kIgnore},
};
constexpr std::array kTies = {
    std::pair<std::string_view, Ties>{"keep", Ties::kKeep},
    std::pair<std::string_view, Ties>{"untie", Ties::kUntie},
};
constexpr std::array kQuantized = {
    std::pair<std::string_view, Quantized>{"dequantize", Quantized::kDequantize},
    std::pair<std::string_view, Quantized>{"keep", Quantized::kKeep},
};
constexpr std::array kArithmetics = {
    std::pair<std::string_view, Arithmetic>{"exact", Arithmetic::kExact},
    std::pair<std::string_view, Arithmetic>{"reference", Arithmetic::kReference},
};
constexpr std::array kStrictnesses = {
    std::pair<std::string_view, Strictness>{"strict", Strictness::kStrict},
    std::pair<std::string_view, Strictness>{"report", Strictness::kReport},
};

// The lists of name patterns, in the order of the document.
constexpr std::array kPatternLists = {
    std::pair<std::string_view, std::vector<NamePattern> Policy::*>{"allow_missing", &Policy::allow_missing},
    std::pair<std::string_view, std::vector<NamePattern> Policy::*>{"not_expected", &Policy::not_expected},
    std::pair<std::string_view, std::vector<NamePattern> Policy::*>{"allow_unexpected", &Policy::allow_unexpected},
    std::pair<std::string_view, std::vector<NamePattern> Policy::*>{"allow_mismatch", &Policy::allow_mismatch},
    std::pair<std::string_view, std::vector<NamePattern> Policy::*>{"may_untie", &Policy::may_untie},
    std::pair<std::string_view, std::vector<NamePattern> Policy::*>{"keep", &Policy::keep},
    std::pair<std::string_view, std::vector<NamePattern> Policy::*>{"external", &Policy::external},
};

bool can_be_requested(DType dtype) {
  return class_of(dtype) == DTypeClass::kFloat && !is_packed(dtype) && dtype != DType::kF8E8M0;
}

bool can_be_computed_in(DType dtype) { return can_be_requested(dtype) && !is_float8(dtype); }

// What is wrong with a policy, by field: "pins[2].name".
class FieldProblems {
 public:
  void add(std::string field, Error error) {
    error.message = fmt::format("{}: {}", field, error.message);
    list_.emplace_back(std::move(field), std::move(error));
  }
  auto begin() { return list_.begin(); }
  auto end() { return list_.end(); }

 private:
  std::vector<std::pair<std::string, Error>> list_;
};

Error problem(std::string message, std::string_view rule) {
  return Error(Code::kPolicy, std::move(message)).by_rule(rule);
}

void check_subtrees(const Policy& policy, FieldProblems& problems) {
  std::set<std::string_view> seen;
  for (const auto& [module, dtype] : policy.subtree_dtypes) {
    const std::string field = fmt::format("subtree_dtypes.{}", escape(module));
    if (!model::is_pin_pattern(module)) {
      problems.add(field, problem("not the dotted name of a module", "R32")
                              .got(quote(module))
                              .try_this("Use \"dtype\" for the whole model."));
    }
    if (!seen.insert(module).second) problems.add(field, problem("listed twice", "R32"));
    if (dtype && !can_be_requested(*dtype)) {
      problems.add(field, problem("not a dtype that can be requested", "R23")
                              .wanted("a floating dtype of 8 bits or more")
                              .got(std::string(name(*dtype))));
    }
  }
}

void check_constructed(const Policy& policy, FieldProblems& problems) {
  std::set<std::string_view> seen;
  for (const auto& [tensor, dtype] : policy.constructed_dtypes) {
    if (seen.insert(tensor).second) continue;
    problems.add(fmt::format("constructed_dtypes.{}", escape(tensor)), problem("listed twice", "R23"));
  }
}

void check_budget(const Policy& policy, FieldProblems& problems) {
  if (policy.budget_bytes >= kLeastBudgetBytes) return;
  problems.add(
      "budget_bytes",
      problem("the memory budget is too small", "R64")
          .wanted(fmt::format("{} (32 MiB) or more: each rank of a node needs at least that much for staging buffers",
                              kLeastBudgetBytes))
          .got(std::to_string(policy.budget_bytes)));
}

FieldProblems problems_of(const Policy& policy) {
  FieldProblems problems;
  if (policy.dtype && !can_be_requested(*policy.dtype)) {
    problems.add("dtype", problem("not a dtype that can be requested", "R23")
                              .wanted("a floating dtype of 8 bits or more")
                              .got(std::string(name(*policy.dtype))));
  }
  if (policy.compute_dtype && !can_be_computed_in(*policy.compute_dtype)) {
    problems.add("compute_dtype", problem("not a dtype to compute in", "R26")
                                      .wanted("F16, BF16, F32 or F64")
                                      .got(std::string(name(*policy.compute_dtype))));
  }
  check_budget(policy, problems);
  for (const auto& [field, list] : kPatternLists) {
    const auto& patterns = policy.*list;
    for (std::size_t i = 0; i < patterns.size(); ++i) {
      if (patterns[i].text.empty())
        problems.add(fmt::format("{}[{}]", field, i), problem("the pattern is empty", "R39"));
    }
  }
  for (std::size_t i = 0; i < policy.pins.size(); ++i) {
    const NamePattern& pattern = policy.pins[i].pattern;
    if (model::is_pin_pattern(pattern.text)) continue;
    problems.add(fmt::format("pins[{}].{}", i, pattern.is_exact ? "name" : "pattern"),
                 problem("the name has an empty component", "R25").got(quote(pattern.text)));
  }
  check_subtrees(policy, problems);
  check_constructed(policy, problems);
  return problems;
}

void read_dtype_or_auto(JsonFields& fields, std::string_view key, std::optional<DType>& out) {
  const auto value = fields.find(key);
  if (!value || (value->is_string() && value->text() == "auto")) return;
  out = value->is_string() ? dtype_from_name(value->text()) : std::nullopt;
  if (!out) fields.problem(*value, key, "not a dtype", "\"auto\", or a name as in safetensors, such as \"BF16\"");
}

// Half of FSDP2's mixed-precision policy is ours. The other half is easily written here too.
void refuse_reduce_dtype(JsonFields& fields) {
  if (const auto value = fields.find("reduce_dtype")) {
    fields.problem(*value, "reduce_dtype", "a load does not depend on the dtype in which gradients are reduced",
                   "no such field: pass it to FSDP2's MixedPrecisionPolicy");
  }
}

// Places of the document that could not be read: what stands there instead is nobody's, so nothing is said of it.
class Unread {
 public:
  explicit Unread(Errors& errors) : errors_(errors) {}

  template <class Read>
  void watch(std::string path, const Read& read) {
    const std::size_t before = errors_.size();
    read();
    if (errors_.size() > before) paths_.push_back(std::move(path));
  }
  /// Of a field as Problem names it: "pins[2].name".
  [[nodiscard]] bool has(std::string_view field) const {
    const std::string path = fmt::format("$.{}", field);
    return std::any_of(paths_.begin(), paths_.end(),
                       [&](const std::string& other) { return path.starts_with(other) || other.starts_with(path); });
  }

 private:
  Errors& errors_;
  std::vector<std::string> paths_;
};

void read_subtrees(JsonFields& fields, Policy& policy, Unread& unread, Errors& errors) {
  const auto value = fields.find("subtree_dtypes");
  if (!value) return;
  JsonFields subtrees(*value, fields.path_of("subtree_dtypes"), errors);
  if (!value->is_object()) return;
  for (const JsonMember member : *value) {
    std::optional<DType> dtype;
    unread.watch(subtrees.path_of(member.key), [&] { read_dtype_or_auto(subtrees, member.key, dtype); });
    policy.subtree_dtypes.emplace_back(member.key, dtype);
  }
}

void read_constructed(JsonFields& fields, Policy& policy, Unread& unread, Errors& errors) {
  const auto value = fields.find("constructed_dtypes");
  if (!value) return;
  JsonFields tensors(*value, fields.path_of("constructed_dtypes"), errors);
  if (!value->is_object()) return;
  for (const JsonMember member : *value) {
    std::optional<DType> dtype;
    unread.watch(tensors.path_of(member.key), [&] { tensors.optional_dtype(member.key, dtype); });
    if (dtype) policy.constructed_dtypes.emplace_back(member.key, *dtype);
  }
}

void write_patterns(JsonWriter& json, std::string_view key, const std::vector<NamePattern>& patterns) {
  json.key(key).begin_array();
  for (const NamePattern& pattern : patterns) write_name_pattern(json, pattern);
  json.end_array();
}

}  // namespace

Errors check_policy(const Policy& policy) {
  Errors errors;
  if (!is_enumerator(policy.cast, Cast::kDestination) ||
      !is_enumerator(policy.compute_record, ComputeRecord::kIgnore) ||
      !is_enumerator(policy.unexpected, Strictness::kReport) || !is_enumerator(policy.ties, Ties::kUntie) ||
      !is_enumerator(policy.quantized, Quantized::kKeep) || !is_enumerator(policy.arithmetic, Arithmetic::kReference)) {
    errors.add(Error(Code::kPolicy,
                     "cast, compute_record, unexpected, ties, quantized or arithmetic: not a known enumerator"));
    return errors;
  }
  for (auto& [field, error] : problems_of(policy)) errors.add(std::move(error));
  return errors;
}

Result<Policy, Errors> parse_policy(const JsonDocument& document) {
  Errors errors;
  Policy policy;
  Unread unread(errors);
  auto fields = begin_document(document, kSchemaName, errors);
  const auto read = [&](std::string_view key, const auto& act) { unread.watch(fields.path_of(key), act); };
  const auto read_each = [&](std::string_view key, const auto& act) {
    read(key, [&] {
      fields.optional_each(
          key, [&](const JsonValue& value, const std::string& path) { unread.watch(path, [&] { act(value, path); }); });
    });
  };
  read("dtype", [&] { read_dtype_or_auto(fields, "dtype", policy.dtype); });
  fields.optional_word("cast", kCasts, policy.cast);
  read("compute_dtype", [&] { fields.optional_dtype("compute_dtype", policy.compute_dtype); });
  fields.optional_word("compute_record", kComputeRecords, policy.compute_record);
  refuse_reduce_dtype(fields);
  fields.optional_word("unexpected", kStrictnesses, policy.unexpected);
  fields.optional_word("ties", kTies, policy.ties);
  fields.optional_word("quantized", kQuantized, policy.quantized);
  fields.optional_word("arithmetic", kArithmetics, policy.arithmetic);
  fields.optional_uint64("seed", policy.seed);
  read("budget_bytes", [&] { fields.optional_uint64("budget_bytes", policy.budget_bytes); });
  for (const auto& [field, list] : kPatternLists) {
    read_each(field, [&, out = list](const JsonValue& value, const std::string& path) {
      (policy.*out).push_back(read_name_pattern(value, path, errors));
    });
  }
  read_each("pins", [&](const JsonValue& value, const std::string& path) {
    policy.pins.push_back(model::read_pin(value, path, errors));
  });
  read_subtrees(fields, policy, unread, errors);
  read_constructed(fields, policy, unread, errors);
  fields.finish();
  for (auto& [field, error] : problems_of(policy)) {
    if (unread.has(field)) continue;
    error.message = "$." + error.message;
    errors.add(std::move(error));
  }
  if (!errors.empty()) return fail(std::move(errors));
  return policy;
}

std::string policy_json(const Policy& policy) {
  JsonWriter json;
  json.begin_object();
  json.key("schema").string(kSchemaName);
  json.key("dtype").string(policy.dtype ? name(*policy.dtype) : "auto");
  json.key("cast").string(word_of(kCasts, policy.cast));
  if (policy.compute_dtype) json.key("compute_dtype").string(name(*policy.compute_dtype));
  json.key("compute_record").string(word_of(kComputeRecords, policy.compute_record));
  json.key("unexpected").string(word_of(kStrictnesses, policy.unexpected));
  json.key("ties").string(word_of(kTies, policy.ties));
  json.key("quantized").string(word_of(kQuantized, policy.quantized));
  json.key("arithmetic").string(word_of(kArithmetics, policy.arithmetic));
  json.key("seed").number(policy.seed);
  json.key("budget_bytes").number(policy.budget_bytes);
  for (const auto& [field, list] : kPatternLists) write_patterns(json, field, policy.*list);
  json.key("pins").begin_array();
  for (const model::Pin& pin : policy.pins) model::write_pin(json, pin);
  json.end_array();
  json.key("subtree_dtypes").begin_object();
  for (const auto& [module, dtype] : policy.subtree_dtypes) json.key(module).string(dtype ? name(*dtype) : "auto");
  json.end_object();
  json.key("constructed_dtypes").begin_object();
  for (const auto& [tensor, dtype] : policy.constructed_dtypes) json.key(tensor).string(name(dtype));
  json.end_object();
  json.end_object();
  return json.take();
}

}  // namespace lading::policy
