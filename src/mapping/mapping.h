// Mapping: from rules, the model's names and the checkpoint's keys to one expression per model tensor.
// Pure. Rules are exact: two sources for one target, or a user's rule that matches nothing, are errors (R43).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_reader.h"
#include "lading/result.h"
#include "lading/shape.h"
#include "mapping/expression.h"

namespace lading::mapping {

enum class RuleKind : std::uint8_t {
  kRename,         ///< the key `from` is the model tensor `to`
  kRenamePattern,  ///< every key that RE2 `from` matches wholly; `to` may use \1 … \9
  kIgnore,         ///< keys that RE2 `from` matches wholly are left alone, on purpose (R46)
  kIgnoreKey,      ///< so is the key `from`, whatever characters are in it
  kBuild,          ///< the model tensors that the template `to` names are made by the expression
};

/// A template is a name with variables: "layers.{layer}.experts.gate_up_proj". A variable stands for a run of
/// digits, mostly one dotted component. In an expression's keys the same variables stand; a stack may run over
/// a further one: {"stack": {"dim": 0, "over": "e", "of": …}}, 0 to the target's extent in that dim, all
/// of which must be there (R47). See mapping/template.h.
struct ExpressionTemplate;

struct Rule {
  std::string id;
  RuleKind kind = RuleKind::kRename;
  std::string from;
  std::string to;
  bool optional = false;  ///< may match nothing: a library's table, not a user's word
  std::shared_ptr<const ExpressionTemplate> expression;

  static Rule rename(std::string id, std::string from, std::string to);
  static Rule rename_pattern(std::string id, std::string from, std::string to);
  static Rule ignore(std::string id, std::string from);
  static Rule ignore_key(std::string id, std::string from);
  static Rule build(std::string id, std::string to, ExpressionTemplate expression);
  [[nodiscard]] Rule make_optional() &&;
};

struct Mapping {
  std::vector<Rule> rules;
};

/// `lading.mapping/1`.
Result<Mapping, Errors> parse_mapping(const JsonDocument& document);
std::string mapping_json(const Mapping& mapping);

}  // namespace lading::mapping
