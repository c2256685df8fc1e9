// A rule made ready: patterns compiled, templates parsed, everything about it that can be wrong found. Internal.
#pragma once

#include <optional>
#include <string>

#include "mapping/mapping.h"
#include "mapping/pattern.h"
#include "mapping/template.h"

namespace lading::mapping {

struct ReadyRule {
  const Rule* rule = nullptr;
  std::optional<Pattern> pattern;  ///< kRenamePattern, kIgnore
  std::optional<NameTemplate> to;  ///< kBuild
};

/// Whether a rule of this kind is about tensors of the model.
inline bool has_target(RuleKind kind) { return kind != RuleKind::kIgnore && kind != RuleKind::kIgnoreKey; }

/// `where` begins every message: a JSON path, or the rule's id. The result borrows the rule.
Result<ReadyRule, Errors> make_ready(const Rule& rule, const std::string& where);

}  // namespace lading::mapping
