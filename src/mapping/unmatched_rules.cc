// Rules that match nothing, and what they could have been about.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "mapping/resolve_state.h"

namespace lading::mapping {
namespace {

class UnmatchedRules {
 public:
  explicit UnmatchedRules(ResolveState& state) : s_(state) {}

  void report() {
    for (const RuleId r : s_.rules.ids()) {
      const Rule& rule = *s_.rules[r].rule;
      if (s_.matched[r] || rule.optional) continue;
      dispute_what_it_could_be(r);
      Error error(Code::kMapping, fmt::format("{} matches nothing", s_.rule_name(r)));
      if (rule.kind == RuleKind::kBuild) {
        error.expected = fmt::format("model tensors named {}, and their sources", quote(rule.to));
        if (const TargetId t = s_.sourceless[r]; !t.is_none()) {
          error.tensor = s_.target(t).name;
          error.found = s_.tensor_notes.at(t);
        }
      } else {
        const bool is_key = rule.kind == RuleKind::kRename || rule.kind == RuleKind::kIgnoreKey;
        error.expected = is_key ? fmt::format("the key {}", quote(rule.from))
                                : fmt::format("keys that {} matches completely", quote(rule.from));
        if (!s_.keys.empty()) error.found = fmt::format("keys such as {}", quote(s_.keys.front()));
      }
      s_.errors.add(std::move(error).by_rule("R43").try_this("Correct the rule, or mark it as optional."));
    }
  }

 private:
  void dispute_what_it_could_be(RuleId r) {
    const Rule& rule = *s_.rules[r].rule;
    switch (rule.kind) {
      case RuleKind::kIgnore:
      case RuleKind::kIgnoreKey: return;  // it is nobody's source
      case RuleKind::kRename: s_.dispute_target(s_.find_target(rule.to)); return;
      case RuleKind::kRenamePattern:
        dispute_sourceless(std::string_view(rule.to).substr(0, rule.to.find('\\')),
                           [&](std::string_view name) { return could_be(rule.to, name); });
        if (!std::exchange(any_key_is_meant_, true)) dispute_unread("", [](std::string_view) { return true; });
        return;
      case RuleKind::kBuild:
        dispute_sourceless(s_.rules[r].to->prefix(),
                           [&](std::string_view name) { return s_.rules[r].to->match(name).has_value(); });
        dispute_sources(*rule.expression);
        return;
    }
  }

  template <class IsMeant>
  void dispute_sourceless(std::string_view prefix, const IsMeant& is_meant) {
    const auto by_name = [](const Target& target, std::string_view name) { return target.name < name; };
    auto target = std::lower_bound(s_.targets.begin(), s_.targets.end(), prefix, by_name);
    for (; target != s_.targets.end() && target->name.starts_with(prefix); ++target) {
      const TargetId t(static_cast<std::size_t>(target - s_.targets.begin()));
      const TargetState& state = s_.target_states[t];
      if (target->in_files && state.built == nullptr && state.key.is_none() && is_meant(target->name))
        s_.dispute_target(t);
    }
  }

  template <class IsMeant>
  void dispute_unread(std::string_view prefix, const IsMeant& is_meant) {
    auto key = std::lower_bound(s_.keys.begin(), s_.keys.end(), prefix);
    for (; key != s_.keys.end() && key->starts_with(prefix); ++key) {
      KeyState& state = s_.key_states[KeyId(static_cast<std::size_t>(key - s_.keys.begin()))];
      if (!state.is_read() && state.ignored_by.is_none() && !state.left_alone && is_meant(*key)) state.disputed = true;
    }
  }

  void dispute_sources(const ExpressionTemplate& expression) {
    const auto dispute = [&](const NameTemplate& read) {
      dispute_unread(read.prefix(), [&](std::string_view key) { return read.match(key).has_value(); });
    };
    if (expression.form == Form::kSource || expression.form == Form::kDequantize) dispute(expression.key);
    if (expression.form == Form::kDequantize) {
      dispute(expression.scales);
      if (expression.zeros) dispute(*expression.zeros);
      if (expression.tensor_scale) dispute(*expression.tensor_scale);
      if (expression.groups) dispute(*expression.groups);
    }
    for (const ExpressionTemplate& part : expression.parts) dispute_sources(part);
  }

  // Whether a replacement can make this name: \0 to \9 stand for anything.
  static bool could_be(std::string_view replacement, std::string_view name) {
    std::vector<std::string> literals(1);
    for (std::size_t i = 0; i < replacement.size(); ++i) {
      if (replacement[i] != '\\' || i + 1 == replacement.size()) {
        literals.back() += replacement[i];
      } else if (replacement[++i] == '\\') {
        literals.back() += '\\';
      } else {
        literals.emplace_back();
      }
    }
    if (literals.size() == 1) return name == literals.front();
    if (!name.starts_with(literals.front())) return false;
    name.remove_prefix(literals.front().size());
    for (std::size_t i = 1; i + 1 < literals.size(); ++i) {
      const std::size_t at = name.find(literals[i]);
      if (at == std::string_view::npos) return false;
      name.remove_prefix(at + literals[i].size());
    }
    return name.ends_with(literals.back());
  }

  ResolveState& s_;
  bool any_key_is_meant_ = false;  // by a pattern that matches none
};

}  // namespace

void report_unmatched_rules(ResolveState& state) { UnmatchedRules(state).report(); }

}  // namespace lading::mapping
