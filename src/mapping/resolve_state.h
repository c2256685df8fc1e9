// What is known of keys, targets and rules while they are resolved. Internal to the room.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/index.h"
#include "base/text.h"
#include "mapping/name_index.h"
#include "mapping/resolve.h"
#include "mapping/rule_check.h"

namespace lading::mapping {

using RuleId = Index<struct RuleTag>;  ///< into Mapping::rules

/// What becomes of a key.
struct KeyState {
  RuleId ignored_by;
  RuleId renamed_by;
  TargetId taken_by;        ///< that has it by rename or by its name
  RuleId built_by;          ///< the first whose expression reads it
  bool left_alone = false;  ///< meant for a target that is never in a file (R46)
  bool disputed = false;    ///< a problem is about it, so nothing can be said of it
  [[nodiscard]] bool is_read() const { return !taken_by.is_none() || !built_by.is_none(); }
};

/// What becomes of a target: a build rule's expression, or one key, whole. Most are the latter, so that is kept small.
struct TargetState {
  std::unique_ptr<Expression> built;
  RuleId made_by;  ///< none: it has its key by its name
  KeyId key;
};

struct ResolveState {
  ResolveState(const Mapping& mapping, const std::vector<Target>& all_targets,
               const std::vector<std::string_view>& all_keys)
      : targets(all_targets),
        keys(all_keys),
        names(all_targets, all_keys),
        key_states(all_keys.size()),
        target_states(all_targets.size()),
        matched(mapping.rules.size()),
        sourceless(mapping.rules.size()) {}

  const std::vector<Target>& targets;
  const std::vector<std::string_view>& keys;
  NameIndex names;
  IndexedVector<RuleId, ReadyRule> rules;
  IndexedVector<KeyId, KeyState> key_states;
  IndexedVector<TargetId, TargetState> target_states;
  IndexedVector<RuleId, bool> matched;
  IndexedVector<RuleId, TargetId> sourceless;  ///< the first target that it found no source for
  std::map<KeyId, std::string> key_notes;
  std::map<TargetId, std::string> tensor_notes;
  std::set<TargetId> disputed;
  bool settled = true;
  Errors errors;

  [[nodiscard]] std::string_view key(KeyId k) const { return keys[k.number()]; }
  [[nodiscard]] const Target& target(TargetId t) const { return targets[t.number()]; }
  [[nodiscard]] KeyId find_key(std::string_view name) const { return names.find_key(name); }
  [[nodiscard]] TargetId find_target(std::string_view name) const { return names.find_target(name); }
  [[nodiscard]] std::string rule_name(RuleId r) const { return "rule " + quote(rules[r].rule->id); }

  void dispute_target(TargetId t) {
    if (!t.is_none()) disputed.insert(t);
  }
  void dispute_keys(const std::vector<KeyId>& of) {
    for (const KeyId k : of) key_states[k].disputed = true;
  }
};

/// Tells of each rule that matches nothing. What is missing, or left over, perhaps only because of it, is disputed, so
/// that it is not told too; everything else is.
void report_unmatched_rules(ResolveState& state);

}  // namespace lading::mapping
