// `lading.policy/1`, both ways. docs/schema/policy.md is the reference.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

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
constexpr std::array kStrictnesses = {
    std::pair<std::string_view, Strictness>{"strict", Strictness::kStrict},
    std::pair<std::string_view, Strictness>{"report", Strictness::kReport},
};

// The lists of name patterns, in the order of the document.
constexpr std::array kPatternLists = {
    std::pair<std::string_view, std::vector<NamePattern> Policy::*>{"allow_missing", &Policy::allow_missing},
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

Error problem(std::string message, std::string_view rule) {
  return Error(Code::kPolicy, std::move(message)).by_rule(rule);
}

void check_subtrees(const Policy& policy, Errors& errors) {
  std::set<std::string_view> seen;
  for (const auto& [module, dtype] : policy.subtree_dtypes) {
    const std::string field = fmt::format("subtree_dtypes.{}", escape(module));
    if (!model::is_pin_pattern(module)) {
      errors.add(problem(field + ": not the dotted name of a module", "R32")
                     .got(quote(module))
                     .try_this("for the whole model, say dtype"));
    }
    if (!seen.insert(module).second) errors.add(problem(field + ": listed twice", "R32"));
    if (dtype && !can_be_requested(*dtype)) {
      errors.add(problem(field + ": not a dtype that can be requested", "R23")
                     .wanted("a floating dtype of 8 bits or more")
                     .got(std::string(name(*dtype))));
    }
  }
}

void check_budget(const Policy& policy, Errors& errors) {
  if (policy.budget_bytes >= kLeastBudgetBytes) return;
  errors.add(problem("budget_bytes: too little to read through", "R64")
                 .wanted(fmt::format("{} (32 MiB) or more: each rank of a node reads through that much, at least",
                                     kLeastBudgetBytes))
                 .got(std::to_string(policy.budget_bytes)));
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
    fields.problem(*value, "reduce_dtype", "no load depends on the dtype that gradients are reduced in",
                   "no such field: give it to FSDP2's MixedPrecisionPolicy");
  }
}

void read_subtrees(JsonFields& fields, Policy& policy, Errors& errors) {
  const auto value = fields.find("subtree_dtypes");
  if (!value) return;
  JsonFields subtrees(*value, fields.path_of("subtree_dtypes"), errors);
  if (!value->is_object()) return;
  for (const JsonMember member : *value) {
    std::optional<DType> dtype;
    read_dtype_or_auto(subtrees, member.key, dtype);
    policy.subtree_dtypes.emplace_back(member.key, dtype);
  }
}

void read_patterns(JsonFields& fields, std::string_view key, std::vector<NamePattern>& out, Errors& errors) {
  fields.optional_each(key, [&](const JsonValue& value, const std::string& path) {
    out.push_back(read_name_pattern(value, path, errors));
  });
}

void write_patterns(JsonWriter& json, std::string_view key, const std::vector<NamePattern>& patterns) {
  json.key(key).begin_array();
  for (const NamePattern& pattern : patterns) write_name_pattern(json, pattern);
  json.end_array();
}

}  // namespace

Errors check_policy(const Policy& policy) {
  Errors errors;
  if (policy.dtype && !can_be_requested(*policy.dtype)) {
    errors.add(problem("dtype: not a dtype that can be requested", "R23")
                   .wanted("a floating dtype of 8 bits or more")
                   .got(std::string(name(*policy.dtype))));
  }
  if (policy.compute_dtype && !can_be_computed_in(*policy.compute_dtype)) {
    errors.add(problem("compute_dtype: not a dtype to compute in", "R26")
                   .wanted("F16, BF16, F32 or F64")
                   .got(std::string(name(*policy.compute_dtype))));
  }
  check_budget(policy, errors);
  for (const auto& [field, list] : kPatternLists) {
    const auto& patterns = policy.*list;
    for (std::size_t i = 0; i < patterns.size(); ++i) {
      if (patterns[i].text.empty()) errors.add(problem(fmt::format("{}[{}]: an empty pattern", field, i), "R39"));
    }
  }
  for (std::size_t i = 0; i < policy.pins.size(); ++i) {
    const NamePattern& pattern = policy.pins[i].pattern;
    if (model::is_pin_pattern(pattern.text)) continue;
    const std::string_view field = pattern.is_exact ? "name" : "pattern";
    errors.add(problem(fmt::format("pins[{}].{}: has an empty component", i, field), "R25").got(quote(pattern.text)));
  }
  check_subtrees(policy, errors);
  return errors;
}

Result<Policy, Errors> parse_policy(const JsonDocument& document) {
  Errors errors;
  Policy policy;
  auto fields = begin_document(document, kSchemaName, errors);
  read_dtype_or_auto(fields, "dtype", policy.dtype);
  fields.optional_word("cast", kCasts, policy.cast);
  fields.optional_dtype("compute_dtype", policy.compute_dtype);
  fields.optional_word("compute_record", kComputeRecords, policy.compute_record);
  refuse_reduce_dtype(fields);
  fields.optional_word("unexpected", kStrictnesses, policy.unexpected);
  fields.optional_word("ties", kTies, policy.ties);
  fields.optional_uint64("seed", policy.seed);
  fields.optional_uint64("budget_bytes", policy.budget_bytes);
  for (const auto& [field, list] : kPatternLists) read_patterns(fields, field, policy.*list, errors);
  fields.optional_each("pins", [&](const JsonValue& value, const std::string& path) {
    policy.pins.push_back(model::read_pin(value, path, errors));
  });
  read_subtrees(fields, policy, errors);
  fields.finish();

  // A field that could not be read has a value that nobody wrote, so nothing is said of that.
  const auto path_of = [](const Error& error) {
    return std::string(error.message.substr(0, error.message.find(": ")));
  };
  std::vector<std::string> unread;
  for (const Error& error : errors) unread.push_back(path_of(error));
  for (Error error : check_policy(policy)) {
    error.message = "$." + error.message;
    const auto is_about = [path = path_of(error)](const std::string& other) {
      return path.starts_with(other) || other.starts_with(path);
    };
    if (std::none_of(unread.begin(), unread.end(), is_about)) errors.add(std::move(error));
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
  json.key("seed").number(policy.seed);
  json.key("budget_bytes").number(policy.budget_bytes);
  for (const auto& [field, list] : kPatternLists) write_patterns(json, field, policy.*list);
  json.key("pins").begin_array();
  for (const model::Pin& pin : policy.pins) model::write_pin(json, pin);
  json.end_array();
  json.key("subtree_dtypes").begin_object();
  for (const auto& [module, dtype] : policy.subtree_dtypes) json.key(module).string(dtype ? name(*dtype) : "auto");
  json.end_object();
  json.end_object();
  return json.take();
}

}  // namespace lading::policy
