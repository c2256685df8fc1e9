// Who reads which key. Keys are claimed rule by rule; whatever could be meant in two ways is an error.
#include "mapping/resolve.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "base/text.h"
#include "mapping/mapping.h"
#include "mapping/resolve_state.h"
#include "mapping/rule_check.h"

namespace lading::mapping {
namespace {

// Of the patterns of all rules: some 100 MB. A short pattern can be a large program.
constexpr std::uint64_t kMaxSteps = 2'000'000;

class Resolver {
 public:
  Resolver(const Mapping& mapping, const std::vector<Target>& targets, const std::vector<std::string_view>& keys,
           const ShapeOf& shape_of)
      : shape_of_(shape_of), s_(mapping, targets, keys) {
    make_rules_ready(mapping);
  }

  Resolution run() {
    if (!s_.errors.empty()) return {{}, std::move(s_.errors), {}, false};
    if (!s_.rules.empty()) s_.names.build();  // only rules ask for names
    ignore_keys();
    rename_keys();
    for (const RuleId r : s_.rules.ids()) {
      if (s_.rules[r].rule->kind == RuleKind::kBuild) build_targets(r);
    }
    take_equal_names();
    report_unmatched_rules(s_);
    Resolution out{assemble(), std::move(s_.errors), {}, s_.settled};
    for (const TargetId t : s_.disputed) out.disputed.emplace(s_.target(t).name);
    return out;
  }

 private:
  struct Claim {
    KeyId key;
    RuleId rule;
    std::string to;
  };

  [[nodiscard]] Expression whole_key(KeyId k) const { return Expression::source(std::string(s_.key(k))); }
  // What gives a tensor a key: a rule, or without one its name.
  [[nodiscard]] std::string reason(RuleId rule) const { return rule.is_none() ? "its name" : s_.rule_name(rule); }

  void make_rules_ready(const Mapping& mapping) {
    std::uint64_t steps = 0;
    for (const Rule& rule : mapping.rules) {
      auto ready = make_ready(rule, fmt::format("rule {}", quote(rule.id)));
      if (ready) {
        steps += ready->pattern ? ready->pattern->steps() : 0;
        if (steps > kMaxSteps) {
          s_.errors.add(
              Error(Code::kMapping, fmt::format("rule {}: the patterns are too large together", quote(rule.id)))
                  .wanted(fmt::format("at most {} steps when compiled", with_commas(kMaxSteps)))
                  .try_this("Use fewer repetitions, or split the mapping."));
          return;
        }
        s_.rules.push_back(*std::move(ready));
      } else {
        s_.errors.add(std::move(ready).error());
      }
    }
  }

  void ignore_keys() {
    for (const RuleId r : s_.rules.ids()) {
      if (s_.rules[r].rule->kind == RuleKind::kIgnoreKey) ignore_key(s_.find_key(s_.rules[r].rule->from), r);
      if (s_.rules[r].rule->kind != RuleKind::kIgnore) continue;
      for (const KeyId k : s_.names.keys_for(*s_.rules[r].pattern)) {
        if (s_.rules[r].pattern->matches(s_.key(k))) ignore_key(k, r);
      }
    }
  }

  void ignore_key(KeyId k, RuleId r) {
    if (k.is_none()) return;
    s_.matched[r] = true;
    if (s_.key_states[k].ignored_by.is_none()) s_.key_states[k].ignored_by = r;
  }

  void rename_keys() {
    std::vector<Claim> claims;
    for (const RuleId r : s_.rules.ids()) {
      const Rule& rule = *s_.rules[r].rule;
      if (rule.kind == RuleKind::kRename) {
        if (const KeyId k = s_.find_key(rule.from); !k.is_none()) claim_by_name(k, r, claims);
      } else if (rule.kind == RuleKind::kRenamePattern) {
        for (const KeyId k : s_.names.keys_for(*s_.rules[r].pattern)) {
          if (!s_.key_states[k].ignored_by.is_none()) continue;
          if (auto to = s_.rules[r].pattern->rewrite(s_.key(k), rule.to)) claims.push_back({k, r, *std::move(to)});
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

  void claim_by_name(KeyId k, RuleId r, std::vector<Claim>& claims) {
    const RuleId ignored_by = s_.key_states[k].ignored_by;
    if (ignored_by.is_none()) {
      claims.push_back({k, r, s_.rules[r].rule->to});
    } else if (!s_.rules[r].rule->optional) {
      s_.matched[r] = true;
      s_.dispute_target(s_.find_target(s_.rules[r].rule->to));
      ignored_but_read(k, r);
    }
  }

  void ignored_but_read(KeyId k, RuleId r) {
    s_.key_states[k].disputed = true;
    s_.errors.add(Error(Code::kMapping, fmt::format("{} reads the key {}, which {} ignores", s_.rule_name(r),
                                                    quote(s_.key(k)), s_.rule_name(s_.key_states[k].ignored_by)))
                      .by_rule("R46"));
  }

  // A key's claims become one rename, none, or an error.
  void settle(KeyId k, std::span<const Claim> claims) {
    const Claim* chosen = nullptr;
    for (const Claim& claim : claims) {
      s_.matched[claim.rule] = true;
      if (s_.rules[claim.rule].rule->optional && s_.find_target(claim.to).is_none()) continue;
      if (chosen == nullptr) {
        chosen = &claim;
      } else if (chosen->to != claim.to) {
        s_.key_states[k].disputed = true;
        s_.dispute_target(s_.find_target(chosen->to));
        s_.dispute_target(s_.find_target(claim.to));
        s_.errors.add(Error(Code::kMapping, fmt::format("two rules rename the key {}: {} to {}, {} to {}",
                                                        quote(s_.key(k)), s_.rule_name(chosen->rule), quote(chosen->to),
                                                        s_.rule_name(claim.rule), quote(claim.to)))
                          .by_rule("R43"));
      }
    }
    const Claim& noted = chosen != nullptr ? *chosen : claims.front();
    const TargetId t = s_.find_target(noted.to);
    if (t.is_none()) {
      s_.key_notes.emplace(k, fmt::format("{} renames it to {}, which the model does not have",
                                          s_.rule_name(noted.rule), quote(noted.to)));
    }
    if (chosen == nullptr) return;
    s_.key_states[k].renamed_by = chosen->rule;
    if (t.is_none()) return;
    if (!s_.target(t).in_files) {
      s_.key_states[k].left_alone = true;
      return;
    }
    s_.key_states[k].taken_by = t;
    TargetState& state = s_.target_states[t];
    if (!state.key.is_none()) {
      two_sources(t, {state.key, state.made_by}, {k, chosen->rule});
      return;
    }
    state = {nullptr, chosen->rule, k};
  }

  // A key that a tensor could have, and by which rule; without one by its name.
  struct Candidate {
    KeyId key;
    RuleId rule;
  };

  void two_sources(TargetId t, const Candidate& one, const Candidate& other) {
    s_.dispute_target(t);
    s_.dispute_keys({one.key, other.key});
    s_.errors.add(
        Error(Code::kMapping,
              fmt::format("the tensor has two sources: the key {} by {}, and the key {} by {}", quote(s_.key(one.key)),
                          reason(one.rule), quote(s_.key(other.key)), reason(other.rule)))
            .of_tensor(s_.target(t).name)
            .by_rule("R43")
            .try_this("Ignore one of the keys with a rule, or make the rules more specific."));
  }

  void build_targets(RuleId r) {
    const NameTemplate& to = *s_.rules[r].to;
    if (!to.has_variables()) {
      if (const TargetId t = s_.find_target(to.prefix()); !t.is_none()) build(r, t, {});
      return;
    }
    const auto by_name = [](const Target& target, std::string_view name) { return target.name < name; };
    const auto first = std::lower_bound(s_.targets.begin(), s_.targets.end(), std::string_view(to.prefix()), by_name);
    for (auto target = first; target != s_.targets.end() && target->name.starts_with(to.prefix()); ++target) {
      if (const auto bindings = to.match(target->name))
        build(r, TargetId(static_cast<std::size_t>(target - s_.targets.begin())), *bindings);
    }
  }

  void build(RuleId r, TargetId t, const Bindings& bindings) {
    const Rule& rule = *s_.rules[r].rule;
    const Instance instance{*rule.expression, bindings, s_.target(t).shape};
    auto sources = source_keys(instance);
    if (!sources) {
      s_.matched[r] = true;
      s_.settled = false;  // which keys it is about is not known
      add_for(r, t, std::move(sources).error());
      return;
    }
    std::vector<KeyId> present;
    std::vector<std::string> missing;
    for (std::string& key : *sources) {
      if (const KeyId k = s_.find_key(key); !k.is_none()) {
        present.push_back(k);
      } else {
        missing.push_back(std::move(key));
      }
    }
    if (!s_.target(t).in_files) {
      for (const KeyId k : present) s_.key_states[k].left_alone = true;
      if (!present.empty()) s_.matched[r] = true;
      return;
    }
    if (present.empty()) {
      note_sourceless(r, t, missing);
      return;
    }
    s_.matched[r] = true;
    for (const std::string& key : missing) {
      add_for(r, t, Error(Code::kMapping, fmt::format("the checkpoint has no key {}", quote(key))).by_rule("R47"));
    }
    if (!missing.empty() || !read_by_expression(r, present)) {
      s_.dispute_target(t);
      s_.dispute_keys(present);
      return;
    }
    auto expression = lower(instance, shape_of_);
    if (!expression) {
      for (const Error& error : expression.error()) add_for(r, t, error);
      return;
    }
    TargetState& state = s_.target_states[t];
    if (!state.made_by.is_none()) {
      add_for(r, t,
              Error(Code::kMapping, fmt::format("{} makes this tensor too", s_.rule_name(state.made_by)))
                  .by_rule("R43")
                  .wanted(state.built != nullptr ? state.built->text() : whole_key(state.key).text())
                  .got(expression->text()));
      return;
    }
    state.built = std::make_unique<Expression>(*std::move(expression));
    state.made_by = r;
  }

  void add_for(RuleId r, TargetId t, Error error) {
    s_.dispute_target(t);
    error.message = fmt::format("{}: {}", s_.rule_name(r), error.message);
    s_.errors.add(std::move(error).of_tensor(s_.target(t).name));
  }

  // Marks the keys as read by this rule's expression; expressions may share a key, but with nothing else.
  bool read_by_expression(RuleId r, const std::vector<KeyId>& keys) {
    bool good = true;
    for (const KeyId k : keys) {
      KeyState& state = s_.key_states[k];
      if (!state.ignored_by.is_none()) {
        ignored_but_read(k, r);
        good = false;
      } else if (!state.renamed_by.is_none()) {
        s_.errors.add(Error(Code::kMapping, fmt::format("{} reads the key {}, which {} renames", s_.rule_name(r),
                                                        quote(s_.key(k)), s_.rule_name(state.renamed_by)))
                          .by_rule("R43"));
        good = false;
      } else if (state.built_by.is_none()) {
        state.built_by = r;
      }
    }
    return good;
  }

  void note_sourceless(RuleId r, TargetId t, const std::vector<std::string>& missing) {
    constexpr std::size_t kShown = 3;
    std::string list;
    for (std::size_t i = 0; i < std::min(missing.size(), kShown); ++i) list += (i == 0 ? "" : ", ") + quote(missing[i]);
    if (missing.size() > kShown) list += fmt::format(" and {} more", missing.size() - kShown);
    if (s_.sourceless[r].is_none()) s_.sourceless[r] = t;
    s_.tensor_notes.emplace(
        t, fmt::format("{} makes it from {}, and the checkpoint has none of them", s_.rule_name(r), list));
  }

  void take_equal_names() {
    KeyId k = 0;
    for (const TargetId t : s_.target_states.ids()) {
      while (s_.key_states.has(k) && s_.key(k) < s_.target(t).name) ++k;
      if (!s_.key_states.has(k) || s_.key(k) != s_.target(t).name) continue;
      KeyState& key = s_.key_states[k];
      TargetState& target = s_.target_states[t];
      const bool free = key.ignored_by.is_none() && key.renamed_by.is_none();
      if (!free) continue;
      if (!s_.target(t).in_files) {
        key.left_alone = true;
      } else if (target.made_by.is_none() && !key.built_by.is_none()) {
        s_.dispute_target(t);
        s_.errors.add(Error(Code::kMapping, fmt::format("{} reads the key {}, which is also the name of this tensor",
                                                        s_.rule_name(key.built_by), quote(s_.key(k))))
                          .of_tensor(s_.target(t).name)
                          .by_rule("R43")
                          .try_this("Use a build rule for this tensor too: only build rules can share a key."));
      } else if (target.made_by.is_none()) {
        key.taken_by = t;
        target.key = k;
      } else if (key.built_by.is_none()) {
        same_name_beside_rule(t, k);
      }
    }
  }

  // The tensor is made by a rule, and a key of its name lies there unread: nothing says which one is right.
  void same_name_beside_rule(TargetId t, KeyId k) {
    const TargetState& state = s_.target_states[t];
    const KeyId first = !state.key.is_none() ? state.key : s_.find_key(state.built->keys().front());
    two_sources(t, {first, state.made_by}, {k, RuleId::none()});
  }

  Resolved assemble() {
    Resolved out;
    out.expressions.reserve(s_.targets.size());
    out.decided_by.reserve(s_.targets.size());
    for (const TargetId t : s_.target_states.ids()) {
      if (s_.disputed.contains(t)) continue;
      const std::string_view name = s_.target(t).name;
      TargetState& state = s_.target_states[t];
      if (state.built != nullptr || !state.key.is_none()) {
        const RuleId r = state.made_by;
        out.decided_by.append(name, r.is_none() ? "" : s_.rules[r].rule->id);
        out.expressions.append(name, state.built != nullptr ? std::move(*state.built) : whole_key(state.key));
      } else if (const auto note = s_.tensor_notes.find(t); note != s_.tensor_notes.end()) {
        out.tensor_notes.emplace_hint(out.tensor_notes.end(), name, note->second);
      }
    }
    for (const KeyId k : s_.key_states.ids()) {
      const KeyState& state = s_.key_states[k];
      if (state.is_read() || state.disputed) continue;
      const std::string_view key = s_.key(k);
      const RuleId r = state.ignored_by;
      const std::string_view by_itself = state.left_alone ? kNonPersistent : std::string_view();
      out.unread.emplace_hint(out.unread.end(), key, r.is_none() ? std::string(by_itself) : s_.rules[r].rule->id);
      if (const auto note = s_.key_notes.find(k); note != s_.key_notes.end())
        out.key_notes.emplace_hint(out.key_notes.end(), key, note->second);
    }
    return out;
  }

  const ShapeOf& shape_of_;
  ResolveState s_;
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
