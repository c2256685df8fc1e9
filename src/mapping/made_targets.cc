#include "mapping/made_targets.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "mapping/pieces.h"
#include "mapping/rule_check.h"
#include "mapping/template.h"

namespace lading::mapping {
namespace {

class TargetMaker {
 public:
  TargetMaker(const std::vector<std::string_view>& keys, const ShapeOf& shape_of) : keys_(keys), shape_of_(shape_of) {}

  Result<MadeTargets, Errors> run(const Mapping& mapping) {
    std::vector<ReadyRule> rules;
    for (const Rule& rule : mapping.rules) {
      LADING_ASSIGN_OR_RETURN(ReadyRule ready, make_ready(rule, fmt::format("rule {}", quote(rule.id))));
      rules.push_back(std::move(ready));
    }
    for (const ReadyRule& rule : rules) ignore(rule);
    for (const ReadyRule& rule : rules) rename(rule);
    for (const ReadyRule& rule : rules) {
      if (rule.rule->kind == RuleKind::kBuild) build(rule);
    }
    if (!errors_.empty()) return fail(std::move(errors_));
    for (auto& [name, target] : targets_) {
      for (const std::string& key : target.expression.keys()) matched_.erase(key);
      made_.targets.push_back(std::move(target));
    }
    made_.left_behind = std::move(matched_);
    return std::move(made_);
  }

 private:
  [[nodiscard]] bool has(std::string_view key) const { return std::binary_search(keys_.begin(), keys_.end(), key); }

  void ignore(const ReadyRule& rule) {
    for (const std::string_view key : keys_) {
      const bool is_ignored = rule.rule->kind == RuleKind::kIgnoreKey ? key == rule.rule->from
                              : rule.rule->kind == RuleKind::kIgnore  ? rule.pattern->matches(key)
                                                                      : false;
      if (is_ignored) made_.ignored.insert(key);
    }
  }

  void rename(const ReadyRule& rule) {
    if (rule.rule->kind == RuleKind::kRename && has(rule.rule->from)) {
      add({rule.rule->to, RuleKind::kRename, Expression::source(rule.rule->from), *shape_of_(rule.rule->from)});
    }
    if (rule.rule->kind != RuleKind::kRenamePattern) return;
    for (const std::string_view key : keys_) {
      if (made_.ignored.contains(key)) continue;
      if (auto to = rule.pattern->rewrite(key, rule.rule->to)) {
        add({*std::move(to), RuleKind::kRenamePattern, Expression::source(std::string(key)), *shape_of_(key)});
      }
    }
  }

  void add(MadeTarget target) {
    const auto [made, is_new] = targets_.try_emplace(target.name, target);
    if (is_new || made->second.expression == target.expression) return;
    errors_.add(Error(Code::kMapping, "the rules make the tensor twice")
                    .of_tensor(target.name)
                    .by_rule("R43")
                    .wanted(made->second.expression.text())
                    .got(target.expression.text()));
  }

  void build(const ReadyRule& rule) {
    const std::vector<std::string> wanted = rule.to->variables();
    std::map<std::string, Bindings> found;  // by the tensor's name
    numbers_.clear();
    match(*rule.rule->expression, [&](const NameTemplate& key, const Bindings& bound) {
      Bindings bindings;
      for (const std::string& variable : wanted) {
        const auto one = std::find_if(bound.begin(), bound.end(), [&](const auto& b) { return b.first == variable; });
        if (one == bound.end()) return;
        bindings.push_back(*one);
      }
      const std::string name = rule.to->render(bindings);
      for (const auto& [variable, digits] : bound) {
        std::uint64_t& highest = numbers_[{&key, name, variable}];
        highest = std::max(highest, number_of(digits));
      }
      found.try_emplace(name, std::move(bindings));
    });
    for (const auto& [name, bindings] : found) build_one(rule, name, bindings);
  }

  // What the leaves' templates match among the keys.
  template <class Found>
  void match(const ExpressionTemplate& node, const Found& found) {
    for (const ExpressionTemplate& part : node.parts) match(part, found);
    if (node.form != Form::kSource && node.form != Form::kDequantize) return;
    for (auto key = std::lower_bound(keys_.begin(), keys_.end(), std::string_view(node.key.prefix()));
         key != keys_.end() && key->starts_with(node.key.prefix()); ++key) {
      const auto bindings = node.key.match(*key);
      if (!bindings) continue;
      if (!made_.ignored.contains(*key)) matched_.insert(*key);
      found(node.key, *bindings);
    }
  }

  void build_one(const ReadyRule& rule, const std::string& name, const Bindings& bindings) {
    const ExpressionTemplate counted = with_counts(*rule.rule->expression, name);
    const Instance instance{counted, bindings};
    const auto refuse = [&](Errors problems) {
      for (Error error : problems) {
        error.message = fmt::format("rule {}: {}", quote(rule.rule->id), error.message);
        errors_.add(std::move(error).of_tensor(name));
      }
    };
    const auto sources = source_keys(instance);
    if (!sources) return refuse(sources.error());
    Errors missing;
    for (const std::string& key : *sources) {
      if (has(key)) continue;
      missing.add(Error(Code::kMapping, fmt::format("the checkpoint has no key {}", quote(key))).by_rule("R47"));
    }
    if (!missing.empty()) return refuse(std::move(missing));
    auto expression = lower(instance, shape_of_);
    if (!expression) return refuse(std::move(expression).error());
    const auto pieces = expand(*expression, shape_of_);
    if (!pieces) return refuse(pieces.error());
    add({name, RuleKind::kBuild, *std::move(expression), pieces->shape});
  }

  // More than any stack can have is told when its keys are counted.
  static std::uint64_t number_of(const std::string& digits) {
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    return error == std::errc() ? std::min<std::uint64_t>(number, kMaxSources) : kMaxSources;
  }

  // A stack without a count ends at the highest number that a key has: a number without a key is missing.
  [[nodiscard]] ExpressionTemplate with_counts(const ExpressionTemplate& node, const std::string& name) const {
    ExpressionTemplate counted = node;
    if (node.form == Form::kStackOver && !node.count) {
      const std::uint64_t highest = highest_number(node, node.over, name);
      counted.count = highest < node.begin ? 1 : highest - node.begin + 1;
    }
    for (std::size_t i = 0; i < node.parts.size(); ++i) counted.parts[i] = with_counts(node.parts[i], name);
    return counted;
  }

  [[nodiscard]] std::uint64_t highest_number(const ExpressionTemplate& node, const std::string& variable,
                                             const std::string& name) const {
    const auto own = numbers_.find({&node.key, name, variable});
    std::uint64_t highest = own == numbers_.end() ? 0 : own->second;
    for (const ExpressionTemplate& part : node.parts) {
      highest = std::max(highest, highest_number(part, variable, name));
    }
    return highest;
  }

  const std::vector<std::string_view>& keys_;
  const ShapeOf& shape_of_;
  std::map<std::string, MadeTarget> targets_;
  std::set<std::string_view> matched_;
  // Of the rule in hand, by template of a key, tensor and variable: the highest number that a key has.
  std::map<std::tuple<const NameTemplate*, std::string, std::string>, std::uint64_t> numbers_;
  MadeTargets made_;
  Errors errors_;
};

}  // namespace

Result<MadeTargets, Errors> targets_of(const Mapping& mapping, const std::vector<std::string_view>& keys,
                                       const ShapeOf& shape_of) {
  return TargetMaker(keys, shape_of).run(mapping);
}

}  // namespace lading::mapping
