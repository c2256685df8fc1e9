// `lading.mapping/1`: docs/schema/mapping.md.
#include <fmt/format.h>

#include <array>
#include <unordered_set>
#include <utility>

#include "base/json_fields.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "mapping/mapping.h"
#include "mapping/rule_check.h"

namespace lading::mapping {
namespace {

constexpr std::string_view kSchema = "lading.mapping/1";
constexpr std::array<std::pair<std::string_view, RuleKind>, 5> kKinds = {{
    {"rename", RuleKind::kRename},
    {"rename_pattern", RuleKind::kRenamePattern},
    {"ignore", RuleKind::kIgnore},
    {"ignore_key", RuleKind::kIgnoreKey},
    {"build", RuleKind::kBuild},
}};

Rule read_rule(const JsonValue& value, const std::string& path, Errors& errors) {
  const std::size_t errors_before = errors.size() + errors.not_listed();
  Rule rule;
  JsonFields fields(value, path, errors);
  fields.string("id", rule.id);
  fields.word("kind", kKinds, rule.kind);
  if (rule.kind != RuleKind::kBuild) fields.string("from", rule.from);
  if (has_target(rule.kind)) fields.string("to", rule.to);
  fields.optional_boolean("optional", rule.optional);
  if (rule.kind == RuleKind::kBuild) {
    if (const auto expression = fields.require("expression")) {
      rule.expression = std::make_shared<const ExpressionTemplate>(
          read_expression(*expression, fields.path_of("expression"), errors));
    }
  }
  fields.finish();
  // What cannot be read is not looked at further: it would only be reported twice.
  if (errors.size() + errors.not_listed() != errors_before) return rule;
  if (auto ready = make_ready(rule, path); !ready) {
    for (Error error : ready.error()) errors.add(std::move(error).at({value.offset(), value.offset() + 1}));
  }
  return rule;
}

std::string_view word_of(RuleKind kind) {
  for (const auto& [word, meaning] : kKinds) {
    if (meaning == kind) return word;
  }
  return "";
}

}  // namespace

Result<Mapping, Errors> parse_mapping(const JsonDocument& document) {
  Errors errors;
  Mapping mapping;
  JsonFields fields = begin_document(document, kSchema, errors);
  std::unordered_set<std::string> ids;
  fields.each("rules", [&](const JsonValue& value, const std::string& path) {
    mapping.rules.push_back(read_rule(value, path, errors));
    const std::string& id = mapping.rules.back().id;
    if (!id.empty() && !ids.insert(id).second) {
      errors.add(Error(Code::kMapping, fmt::format("{}.id: another rule has the id {}", path, quote(id)))
                     .at({value.offset(), value.offset() + 1}));
    }
  });
  fields.finish();
  if (!errors.empty()) return fail(std::move(errors));
  return mapping;
}

std::string mapping_json(const Mapping& mapping) {
  JsonWriter writer;
  writer.begin_object().key("schema").string(kSchema).key("rules").begin_array();
  for (const Rule& rule : mapping.rules) {
    writer.begin_object().key("id").string(rule.id).key("kind").string(word_of(rule.kind));
    if (rule.kind != RuleKind::kBuild) writer.key("from").string(rule.from);
    if (has_target(rule.kind)) writer.key("to").string(rule.to);
    if (rule.optional) writer.key("optional").boolean(true);
    if (rule.expression != nullptr) {
      writer.key("expression");
      write_expression(*rule.expression, writer);
    }
    writer.end_object();
  }
  writer.end_array().end_object();
  return writer.take();
}

}  // namespace lading::mapping
