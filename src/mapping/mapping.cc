#include "mapping/mapping.h"

#include <fmt/format.h>

#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/enumerator.h"
#include "base/text.h"
#include "mapping/rule_check.h"

namespace lading::mapping {
namespace {

Error in_field(Error error, const std::string& where, std::string_view field) {
  error.message = fmt::format("{}.{}: {}", where, field, error.message);
  return error;
}

}  // namespace

Rule Rule::rename(std::string id, std::string from, std::string to) {
  return {std::move(id), RuleKind::kRename, std::move(from), std::move(to), false, nullptr};
}

Rule Rule::rename_pattern(std::string id, std::string from, std::string to) {
  return {std::move(id), RuleKind::kRenamePattern, std::move(from), std::move(to), false, nullptr};
}

Rule Rule::ignore(std::string id, std::string from) {
  return {std::move(id), RuleKind::kIgnore, std::move(from), "", false, nullptr};
}

Rule Rule::ignore_key(std::string id, std::string from) {
  return {std::move(id), RuleKind::kIgnoreKey, std::move(from), "", false, nullptr};
}

Rule Rule::build(std::string id, std::string to, ExpressionTemplate expression) {
  return {std::move(id),
          RuleKind::kBuild,
          "",
          std::move(to),
          false,
          std::make_shared<const ExpressionTemplate>(std::move(expression))};
}

Rule Rule::build_one(std::string id, const std::string& name, const Expression& expression) {
  return build(std::move(id), NameTemplate::literal(name).text(), ExpressionTemplate::literal(expression));
}

Rule Rule::make_optional() && {
  optional = true;
  return std::move(*this);
}

Result<ReadyRule, Errors> make_ready(const Rule& rule, const std::string& where) {
  ReadyRule ready;
  ready.rule = &rule;
  Errors errors;
  const auto problem = [&](std::string_view field, std::string message) {
    errors.add(in_field(Error(Code::kMapping, std::move(message)), where, field));
  };
  if (!is_enumerator(rule.kind, RuleKind::kBuild)) problem("kind", "it is not a known enumerator");
  for (const auto& [field, text] : {std::pair("id", &rule.id), {"from", &rule.from}, {"to", &rule.to}}) {
    if (find_invalid_utf8(*text)) problem(field, "it is not UTF-8, so that no JSON document can hold it");
  }
  if (rule.id.empty()) problem("id", "the rule has no name, which the ledger needs");
  const bool has_pattern = rule.kind == RuleKind::kRenamePattern || rule.kind == RuleKind::kIgnore;
  if (rule.from.empty() && rule.kind != RuleKind::kBuild) problem("from", "it is empty");
  if (rule.to.empty() && has_target(rule.kind)) problem("to", "it is empty");
  if (has_pattern) {
    auto pattern = Pattern::compile(rule.from);
    if (!pattern) {
      errors.add(in_field(std::move(pattern).error(), where, "from"));
    } else {
      ready.pattern = *std::move(pattern);
      const bool rewrites = rule.kind == RuleKind::kRenamePattern;
      if (const auto bad = rewrites ? ready.pattern->problem_with(rule.to) : std::nullopt) problem("to", *bad);
    }
  }
  if (rule.kind == RuleKind::kBuild) {
    auto to = NameTemplate::parse(rule.to);
    if (!to) {
      errors.add(in_field(std::move(to).error(), where, "to"));
    } else {
      ready.to = *std::move(to);
      if (rule.expression == nullptr) {
        problem("expression", "it is missing");
      } else if (const auto odd = find_bad_form(*rule.expression)) {
        problem("expression", *odd);
      } else if (const auto bad = find_bad_variable(*rule.expression, ready.to->variables())) {
        problem("expression", *bad);
      }
    }
  }
  if (!errors.empty()) return fail(std::move(errors));
  return ready;
}

Errors check_mapping(const Mapping& mapping) {
  Errors errors;
  std::unordered_set<std::string_view> ids;
  for (const Rule& rule : mapping.rules) {
    const std::string where = fmt::format("rule {}", quote(rule.id));
    if (auto ready = make_ready(rule, where); !ready) errors.add(std::move(ready).error());
    if (!rule.id.empty() && !ids.insert(rule.id).second) {
      errors.add(Error(Code::kMapping, fmt::format("{}.id: another rule has the same id", where)));
    }
  }
  return errors;
}

}  // namespace lading::mapping
