// Who reads which key. Keys are claimed rule by rule; whatever could be meant in two ways is an error.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>

#include "base/text.h"
#include "mapping/mapping.h"
#include "mapping/resolve.h"
#include "mapping/rule_check.h"

namespace lading::mapping {
namespace {

constexpr std::uint32_t kNone = 0xFFFF'FFFF;
// Of the patterns of all rules: some 100 MB. A short pattern can be a large program.
constexpr std::uint64_t kMaxSteps = 2'000'000;

// What becomes of a key. All are indices: rules, targets.
struct KeyState {
  std::uint32_t ignored_by = kNone;
  std::uint32_t renamed_by = kNone;
  std::uint32_t taken_by = kNone;  ///< the target that has it by rename or by its name
  std::uint32_t built_by = kNone;  ///< the first rule whose expression reads it
  bool left_alone = false;         ///< meant for a target that is never in a file (R46)
  bool disputed = false;           ///< a problem is about it, so nothing can be said of it
  [[nodiscard]] bool is_read() const { return taken_by != kNone || built_by != kNone; }
};

// What becomes of a target: a build rule's expression, or one key, whole. Most are the latter, so that is kept small.
struct TargetState {
  std::unique_ptr<Expression> built;
  std::uint32_t made_by = kNone;  ///< a rule; kNone if it has its key by its name
  std::uint32_t key = kNone;
};

class Resolver {
 public:
  Resolver(const Mapping& mapping, const std::vector<Target>& targets, const std::vector<std::string_view>& keys,
           const ShapeOf& shape_of)
      : mapping_(mapping),
        targets_(targets),
        keys_(keys),
        shape_of_(shape_of),
        key_states_(keys.size()),
        target_states_(targets.size()),
        matched_(mapping.rules.size()),
        sourceless_(mapping.rules.size(), kNone) {}

  Resolution run() {
    make_rules_ready();
    if (!errors_.empty()) return {{}, std::move(errors_), {}, false};
    if (!rules_.empty()) index_names();  // only rules ask for names
    ignore_keys();
    rename_keys();
    for (std::uint32_t r = 0; r < rules_.size(); ++r) {
      if (rules_[r].rule->kind == RuleKind::kBuild) build_targets(r);
    }
    take_equal_names();
    report_unmatched();
    Resolution out{assemble(), std::move(errors_), {}, settled_};
    for (const std::uint32_t t : disputed_) out.disputed.emplace(targets_[t].name);
    return out;
  }

 private:
  struct Claim {
    std::uint32_t key;
    std::uint32_t rule;
    std::string to;
  };

  [[nodiscard]] Expression whole_key(std::uint32_t k) const { return Expression::source(std::string(keys_[k])); }
  [[nodiscard]] std::string rule_name(std::uint32_t rule) const {
    return fmt::format("rule {}", quote(mapping_.rules[rule].id));
  }
  // What gives a tensor a key: a rule, or without one its name.
  [[nodiscard]] std::string reason(std::uint32_t rule) const { return rule == kNone ? "its name" : rule_name(rule); }
  [[nodiscard]] std::uint32_t find_key(std::string_view key) const {
    const auto found = key_index_.find(key);
    return found == key_index_.end() ? kNone : found->second;
  }
  [[nodiscard]] std::uint32_t find_target(std::string_view name) const {
    const auto found = target_index_.find(name);
    return found == target_index_.end() ? kNone : found->second;
  }

  void dispute_target(std::uint32_t t) {
    if (t != kNone) disputed_.insert(t);
  }
  void dispute_keys(const std::vector<std::uint32_t>& keys) {
    for (const std::uint32_t k : keys) key_states_[k].disputed = true;
  }

  void make_rules_ready() {
    std::uint64_t steps = 0;
    for (const Rule& rule : mapping_.rules) {
      auto ready = make_ready(rule, fmt::format("rule {}", quote(rule.id)));
      if (ready) {
        steps += ready->pattern ? ready->pattern->steps() : 0;
        if (steps > kMaxSteps) {
          errors_.add(Error(Code::kMapping, fmt::format("rule {}: the patterns are too large together", quote(rule.id)))
                          .wanted(fmt::format("at most {} steps when compiled", with_commas(kMaxSteps)))
                          .try_this("Write fewer repetitions, or split the mapping."));
          return;
        }
        rules_.push_back(*std::move(ready));
      } else {
        errors_.add(std::move(ready).error());
      }
    }
  }

  void index_names() {
    key_index_.reserve(keys_.size());
    for (std::uint32_t k = 0; k < keys_.size(); ++k) key_index_.emplace(keys_[k], k);
    target_index_.reserve(targets_.size());
    for (std::uint32_t t = 0; t < targets_.size(); ++t) target_index_.emplace(targets_[t].name, t);
  }

  void ignore_keys() {
    for (std::uint32_t r = 0; r < rules_.size(); ++r) {
      if (rules_[r].rule->kind == RuleKind::kIgnoreKey) ignore_key(find_key(rules_[r].rule->from), r);
      if (rules_[r].rule->kind != RuleKind::kIgnore) continue;
      for (const std::uint32_t k : keys_for(*rules_[r].pattern)) {
        if (rules_[r].pattern->matches(keys_[k])) ignore_key(k, r);
      }
    }
  }

  void ignore_key(std::uint32_t k, std::uint32_t r) {
    if (k == kNone) return;
    matched_[r] = true;
    if (key_states_[k].ignored_by == kNone) key_states_[k].ignored_by = r;
  }

  // The keys that a pattern may match, ascending: by how it begins or by how it ends, whichever leaves fewer.
  std::vector<std::uint32_t> keys_for(const Pattern& pattern) {
    const auto narrow = [](const auto& sorted, std::string_view start, const auto& text_of) {
      const auto first = std::partition_point(sorted.begin(), sorted.end(), [&](const auto& one) {
        return text_of(one).compare(0, start.size(), start) < 0;
      });
      const auto last = std::partition_point(
          first, sorted.end(), [&](const auto& one) { return text_of(one).compare(0, start.size(), start) <= 0; });
      return std::pair(first, last);
    };
    const auto [first, last] = narrow(keys_, pattern.prefix(), [](std::string_view key) { return key; });
    if (!pattern.suffix().empty()) {
      if (backward_.empty()) sort_backward();
      const std::string end(pattern.suffix().rbegin(), pattern.suffix().rend());
      const auto [from, to] = narrow(backward_, end, [](const auto& one) { return std::string_view(one.first); });
      if (to - from < last - first) {
        std::vector<std::uint32_t> found;
        for (auto one = from; one != to; ++one) found.push_back(one->second);
        std::sort(found.begin(), found.end());
        return found;
      }
    }
    std::vector<std::uint32_t> found(static_cast<std::size_t>(last - first));
    for (std::size_t i = 0; i < found.size(); ++i)
      found[i] = static_cast<std::uint32_t>(first - keys_.begin()) + static_cast<std::uint32_t>(i);
    return found;
  }

  void sort_backward() {
    for (std::uint32_t k = 0; k < keys_.size(); ++k)
      backward_.emplace_back(std::string(keys_[k].rbegin(), keys_[k].rend()), k);
    std::sort(backward_.begin(), backward_.end());
  }

  void rename_keys() {
    std::vector<Claim> claims;
    for (std::uint32_t r = 0; r < rules_.size(); ++r) {
      const Rule& rule = *rules_[r].rule;
      if (rule.kind == RuleKind::kRename) {
        if (const std::uint32_t k = find_key(rule.from); k != kNone) claim_by_name(k, r, claims);
      } else if (rule.kind == RuleKind::kRenamePattern) {
        for (const std::uint32_t k : keys_for(*rules_[r].pattern)) {
          if (key_states_[k].ignored_by != kNone) continue;
          if (auto to = rules_[r].pattern->rewrite(keys_[k], rule.to)) claims.push_back({k, r, *std::move(to)});
        }
      }
    }
    std::stable_sort(claims.begin(), claims.end(), [](const Claim& a, const Claim& b) { return a.key < b.key; });
    for (auto first = claims.cbegin(); first != claims.cend();) {
      const auto last = std::find_if(first, claims.cend(), [&](const Claim& claim) { return claim.key != first->key; });
      settle(first->key, std::span<const Claim>(first, last));
      first = last;
    }
  }

  void claim_by_name(std::uint32_t k, std::uint32_t r, std::vector<Claim>& claims) {
    const std::uint32_t ignored_by = key_states_[k].ignored_by;
    if (ignored_by == kNone) {
      claims.push_back({k, r, rules_[r].rule->to});
    } else if (!rules_[r].rule->optional) {
      matched_[r] = true;
      dispute_target(find_target(rules_[r].rule->to));
      ignored_but_read(k, r);
    }
  }

  void ignored_but_read(std::uint32_t k, std::uint32_t r) {
    key_states_[k].disputed = true;
    errors_.add(Error(Code::kMapping, fmt::format("{} reads the key {}, which {} ignores", rule_name(r),
                                                  quote(keys_[k]), rule_name(key_states_[k].ignored_by)))
                    .by_rule("R46"));
  }

  // A key's claims become one rename, none, or an error.
  void settle(std::uint32_t k, std::span<const Claim> claims) {
    const Claim* chosen = nullptr;
    for (const Claim& claim : claims) {
      matched_[claim.rule] = true;
      if (rules_[claim.rule].rule->optional && find_target(claim.to) == kNone) continue;
      if (chosen == nullptr) {
        chosen = &claim;
      } else if (chosen->to != claim.to) {
        key_states_[k].disputed = true;
        dispute_target(find_target(chosen->to));
        dispute_target(find_target(claim.to));
        errors_.add(Error(Code::kMapping, fmt::format("two rules rename the key {}: {} to {}, {} to {}",
                                                      quote(keys_[k]), rule_name(chosen->rule), quote(chosen->to),
                                                      rule_name(claim.rule), quote(claim.to)))
                        .by_rule("R43"));
      }
    }
    const Claim& noted = chosen != nullptr ? *chosen : claims.front();
    const std::uint32_t t = find_target(noted.to);
    if (t == kNone) {
      key_notes_.emplace(
          k, fmt::format("{} renames it to {}, which the model does not have", rule_name(noted.rule), quote(noted.to)));
    }
    if (chosen == nullptr) return;
    key_states_[k].renamed_by = chosen->rule;
    if (t == kNone) return;
    if (!targets_[t].in_files) {
      key_states_[k].left_alone = true;
      return;
    }
    key_states_[k].taken_by = t;
    TargetState& state = target_states_[t];
    if (state.key != kNone) {
      two_sources(t, state.key, state.made_by, k, chosen->rule);
      return;
    }
    state = {nullptr, chosen->rule, k};
  }

  void two_sources(std::uint32_t t, std::uint32_t key_a, std::uint32_t rule_a, std::uint32_t key_b,
                   std::uint32_t rule_b) {
    dispute_target(t);
    dispute_keys({key_a, key_b});
    errors_.add(
        Error(Code::kMapping, fmt::format("two sources for one tensor: the key {} by {}, the key {} by {}",
                                          quote(keys_[key_a]), reason(rule_a), quote(keys_[key_b]), reason(rule_b)))
            .of_tensor(targets_[t].name)
            .by_rule("R43")
            .try_this("ignore one of the keys by a rule, or make the rules more exact"));
  }

  void build_targets(std::uint32_t r) {
    const NameTemplate& to = *rules_[r].to;
    if (!to.has_variables()) {
      if (const std::uint32_t t = find_target(to.prefix()); t != kNone) build(r, t, {});
      return;
    }
    const auto by_name = [](const Target& target, std::string_view name) { return target.name < name; };
    const auto first = std::lower_bound(targets_.begin(), targets_.end(), std::string_view(to.prefix()), by_name);
    for (auto target = first; target != targets_.end() && target->name.starts_with(to.prefix()); ++target) {
      if (const auto bindings = to.match(target->name))
        build(r, static_cast<std::uint32_t>(target - targets_.begin()), *bindings);
    }
  }

  void build(std::uint32_t r, std::uint32_t t, const Bindings& bindings) {
    const Rule& rule = *rules_[r].rule;
    const Instance instance{*rule.expression, bindings, targets_[t].shape};
    auto sources = source_keys(instance);
    if (!sources) {
      matched_[r] = true;
      settled_ = false;  // which keys it is about is not known
      add_for(r, t, std::move(sources).error());
      return;
    }
    std::vector<std::uint32_t> present;
    std::vector<std::string> missing;
    for (std::string& key : *sources) {
      if (const std::uint32_t k = find_key(key); k != kNone) {
        present.push_back(k);
      } else {
        missing.push_back(std::move(key));
      }
    }
    if (!targets_[t].in_files) {
      for (const std::uint32_t k : present) key_states_[k].left_alone = true;
      if (!present.empty()) matched_[r] = true;
      return;
    }
    if (present.empty()) {
      note_sourceless(r, t, missing);
      return;
    }
    matched_[r] = true;
    for (const std::string& key : missing) {
      add_for(r, t, Error(Code::kMapping, fmt::format("the checkpoint has no key {}", quote(key))).by_rule("R47"));
    }
    if (!missing.empty() || !read_by_expression(r, present)) {
      dispute_target(t);
      dispute_keys(present);
      return;
    }
    auto expression = lower(instance, shape_of_);
    if (!expression) {
      for (const Error& error : expression.error()) add_for(r, t, error);
      return;
    }
    TargetState& state = target_states_[t];
    if (state.made_by != kNone) {
      add_for(r, t,
              Error(Code::kMapping, fmt::format("{} makes this tensor too", rule_name(state.made_by)))
                  .by_rule("R43")
                  .wanted(state.built != nullptr ? state.built->text() : whole_key(state.key).text())
                  .got(expression->text()));
      return;
    }
    state.built = std::make_unique<Expression>(*std::move(expression));
    state.made_by = r;
  }

  void add_for(std::uint32_t r, std::uint32_t t, Error error) {
    dispute_target(t);
    error.message = fmt::format("{}: {}", rule_name(r), error.message);
    errors_.add(std::move(error).of_tensor(targets_[t].name));
  }

  // Marks the keys as read by this rule's expression; expressions may share a key, but with nothing else.
  bool read_by_expression(std::uint32_t r, const std::vector<std::uint32_t>& keys) {
    bool good = true;
    for (const std::uint32_t k : keys) {
      KeyState& state = key_states_[k];
      if (state.ignored_by != kNone) {
        ignored_but_read(k, r);
        good = false;
      } else if (state.renamed_by != kNone) {
        errors_.add(Error(Code::kMapping, fmt::format("{} reads the key {}, which {} renames", rule_name(r),
                                                      quote(keys_[k]), rule_name(state.renamed_by)))
                        .by_rule("R43"));
        good = false;
      } else if (state.built_by == kNone) {
        state.built_by = r;
      }
    }
    return good;
  }

  void note_sourceless(std::uint32_t r, std::uint32_t t, const std::vector<std::string>& missing) {
    constexpr std::size_t kShown = 3;
    std::string list;
    for (std::size_t i = 0; i < std::min(missing.size(), kShown); ++i) list += (i == 0 ? "" : ", ") + quote(missing[i]);
    if (missing.size() > kShown) list += fmt::format(" and {} more", missing.size() - kShown);
    if (sourceless_[r] == kNone) sourceless_[r] = t;
    tensor_notes_.emplace(t, fmt::format("{} makes it of {}; none is in the checkpoint", rule_name(r), list));
  }

  void take_equal_names() {
    std::uint32_t k = 0;
    for (std::uint32_t t = 0; t < targets_.size(); ++t) {
      while (k < keys_.size() && keys_[k] < targets_[t].name) ++k;
      if (k == keys_.size() || keys_[k] != targets_[t].name) continue;
      KeyState& key = key_states_[k];
      TargetState& target = target_states_[t];
      const bool free = key.ignored_by == kNone && key.renamed_by == kNone;
      if (!free) continue;
      if (!targets_[t].in_files) {
        key.left_alone = true;
      } else if (target.made_by == kNone && key.built_by != kNone) {
        dispute_target(t);
        errors_.add(Error(Code::kMapping, fmt::format("{} reads the key {}, which is also the name of this tensor",
                                                      rule_name(key.built_by), quote(keys_[k])))
                        .of_tensor(targets_[t].name)
                        .by_rule("R43")
                        .try_this("a key may be shared by build rules only: make this tensor by one too"));
      } else if (target.made_by == kNone) {
        key.taken_by = t;
        target.key = k;
      } else if (key.built_by == kNone) {
        same_name_beside_rule(t, k);
      }
    }
  }

  // The tensor is made by a rule, and a key of its name lies there unread: nothing says which one is right.
  void same_name_beside_rule(std::uint32_t t, std::uint32_t k) {
    const TargetState& state = target_states_[t];
    const std::uint32_t first = state.key != kNone ? state.key : find_key(state.built->keys().front());
    two_sources(t, first, state.made_by, k, kNone);
  }

  // A rule that matches nothing is told. What is missing, or left over, perhaps only because of it, is not told too;
  // everything else is.
  void dispute_what_it_could_be(std::uint32_t r) {
    const Rule& rule = *rules_[r].rule;
    switch (rule.kind) {
      case RuleKind::kIgnore:
      case RuleKind::kIgnoreKey: return;  // it is nobody's source
      case RuleKind::kRename: dispute_target(find_target(rule.to)); return;
      case RuleKind::kRenamePattern:
        dispute_sourceless(std::string_view(rule.to).substr(0, rule.to.find('\\')),
                           [&](std::string_view name) { return could_be(rule.to, name); });
        if (!std::exchange(any_key_is_meant_, true)) dispute_unread("", [](std::string_view) { return true; });
        return;
      case RuleKind::kBuild:
        dispute_sourceless(rules_[r].to->prefix(),
                           [&](std::string_view name) { return rules_[r].to->match(name).has_value(); });
        dispute_sources(*rule.expression);
        return;
    }
  }

  template <class IsMeant>
  void dispute_sourceless(std::string_view prefix, const IsMeant& is_meant) {
    const auto by_name = [](const Target& target, std::string_view name) { return target.name < name; };
    auto target = std::lower_bound(targets_.begin(), targets_.end(), prefix, by_name);
    for (; target != targets_.end() && target->name.starts_with(prefix); ++target) {
      const auto t = static_cast<std::uint32_t>(target - targets_.begin());
      const TargetState& state = target_states_[t];
      if (target->in_files && state.built == nullptr && state.key == kNone && is_meant(target->name)) dispute_target(t);
    }
  }

  template <class IsMeant>
  void dispute_unread(std::string_view prefix, const IsMeant& is_meant) {
    auto key = std::lower_bound(keys_.begin(), keys_.end(), prefix);
    for (; key != keys_.end() && key->starts_with(prefix); ++key) {
      KeyState& state = key_states_[static_cast<std::size_t>(key - keys_.begin())];
      if (!state.is_read() && state.ignored_by == kNone && !state.left_alone && is_meant(*key)) state.disputed = true;
    }
  }

  void dispute_sources(const ExpressionTemplate& expression) {
    if (expression.form == Form::kSource) {
      dispute_unread(expression.key.prefix(),
                     [&](std::string_view key) { return expression.key.match(key).has_value(); });
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

  void report_unmatched() {
    for (std::uint32_t r = 0; r < rules_.size(); ++r) {
      const Rule& rule = *rules_[r].rule;
      if (matched_[r] || rule.optional) continue;
      dispute_what_it_could_be(r);
      Error error(Code::kMapping, fmt::format("{} matches nothing", rule_name(r)));
      if (rule.kind == RuleKind::kBuild) {
        error.expected = fmt::format("model tensors named {}, and their sources", quote(rule.to));
        if (const std::uint32_t t = sourceless_[r]; t != kNone) {
          error.tensor = targets_[t].name;
          error.found = tensor_notes_.at(t);
        }
      } else {
        const bool is_key = rule.kind == RuleKind::kRename || rule.kind == RuleKind::kIgnoreKey;
        error.expected = is_key ? fmt::format("the key {}", quote(rule.from))
                                : fmt::format("keys that {} matches wholly", quote(rule.from));
        if (!keys_.empty()) error.found = fmt::format("keys such as {}", quote(keys_.front()));
      }
      errors_.add(std::move(error).by_rule("R43").try_this("correct the rule, or mark it as optional"));
    }
  }

  Resolved assemble() {
    Resolved out;
    out.expressions.reserve(targets_.size());
    out.decided_by.reserve(targets_.size());
    for (std::uint32_t t = 0; t < targets_.size(); ++t) {
      if (disputed_.contains(t)) continue;
      const std::string_view name = targets_[t].name;
      TargetState& state = target_states_[t];
      if (state.built != nullptr || state.key != kNone) {
        const std::uint32_t r = state.made_by;
        out.decided_by.append(name, r == kNone ? "" : mapping_.rules[r].id);
        out.expressions.append(name, state.built != nullptr ? std::move(*state.built) : whole_key(state.key));
      } else if (const auto note = tensor_notes_.find(t); note != tensor_notes_.end()) {
        out.tensor_notes.emplace_hint(out.tensor_notes.end(), name, note->second);
      }
    }
    for (std::uint32_t k = 0; k < keys_.size(); ++k) {
      const KeyState& state = key_states_[k];
      if (state.is_read() || state.disputed) continue;
      const std::string_view key = keys_[k];
      const std::uint32_t r = state.ignored_by;
      const std::string_view by_itself = state.left_alone ? kNonPersistent : std::string_view();
      out.unread.emplace_hint(out.unread.end(), key, r == kNone ? std::string(by_itself) : mapping_.rules[r].id);
      if (const auto note = key_notes_.find(k); note != key_notes_.end())
        out.key_notes.emplace_hint(out.key_notes.end(), key, note->second);
    }
    return out;
  }

  const Mapping& mapping_;
  const std::vector<Target>& targets_;
  const std::vector<std::string_view>& keys_;
  const ShapeOf& shape_of_;
  std::vector<ReadyRule> rules_;
  std::unordered_map<std::string_view, std::uint32_t> key_index_;
  std::unordered_map<std::string_view, std::uint32_t> target_index_;
  std::vector<std::pair<std::string, std::uint32_t>>
      backward_;  ///< keys read from their ends, sorted; made when needed
  std::vector<KeyState> key_states_;
  std::vector<TargetState> target_states_;
  std::vector<bool> matched_;
  std::vector<std::uint32_t> sourceless_;  ///< by rule: the first target that it found no source for
  std::unordered_map<std::uint32_t, std::string> key_notes_;
  std::unordered_map<std::uint32_t, std::string> tensor_notes_;
  std::set<std::uint32_t> disputed_;  ///< targets
  bool any_key_is_meant_ = false;     ///< by a pattern that matches none
  bool settled_ = true;
  Errors errors_;
};

}  // namespace

Result<Resolved, Errors> resolve(const Mapping& mapping, const std::vector<Target>& targets,
                                 const std::vector<std::string_view>& keys, const ShapeOf& shape_of) {
  Resolution resolution = resolve_partly(mapping, targets, keys, shape_of);
  if (!resolution.problems.empty()) return fail(std::move(resolution.problems));
  return std::move(resolution.resolved);
}

Resolution resolve_partly(const Mapping& mapping, const std::vector<Target>& targets,
                          const std::vector<std::string_view>& keys, const ShapeOf& shape_of) {
  return Resolver(mapping, targets, keys, shape_of).run();
}

}  // namespace lading::mapping
