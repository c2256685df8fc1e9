// Mapping: rules from the checkpoint's keys and the model's names to one expression per model tensor.
// Rules are exact: two sources for one target, or a user's rule that matches nothing, are errors (R43).
//
// A template is a name with variables: "layers.{layer}.experts.w1". A variable stands for a whole run of digits, mostly
// one dotted component, without leading zeros: so a name matches in one way or not at all, and numbers count in numeric
// order (R47). "{{" and "}}" are braces. An expression's keys
// may use the variables of its target. A stack may run over one more variable, from 0 to the target's extent in that
// dim; every key must exist.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lading/export.h"
#include "lading/expression.h"
#include "lading/result.h"
#include "lading/shape.h"

namespace lading::mapping {

/// Variable and its digits. Few: searched one by one.
using Bindings = std::vector<std::pair<std::string, std::string>>;

class NameTemplate {
 public:
  NameTemplate() = default;
  LADING_API static Result<NameTemplate> parse(std::string_view text);
  /// A name that stands for itself, braces and all.
  LADING_API static NameTemplate literal(std::string name);

  [[nodiscard]] bool has_variables() const { return !steps_.empty(); }
  [[nodiscard]] LADING_API std::vector<std::string> variables() const;
  /// What every name that matches begins with.
  [[nodiscard]] const std::string& prefix() const { return prefix_; }
  [[nodiscard]] LADING_API std::optional<Bindings> match(std::string_view name) const;
  /// Every variable must be bound.
  [[nodiscard]] LADING_API std::string render(const Bindings& bindings) const;
  /// parse(text()) is the same template.
  [[nodiscard]] LADING_API std::string text() const;

  friend bool operator==(const NameTemplate&, const NameTemplate&) = default;

 private:
  struct Step {
    std::string variable;
    std::string literal;  ///< behind it
    friend bool operator==(const Step&, const Step&) = default;
  };
  std::string prefix_;
  std::vector<Step> steps_;
};

enum class Form : std::uint8_t {
  kSource,
  kConcat,
  kStack,
  kStackOver,  ///< a stack of `part` with variable `over` = begin, begin + 1, …
  kSlice,
  kPermute,
  kRearrange,
  kReshape,
  kPad,
  kDequantize,
  // Shorthands; lowering them to an Expression needs the part's shape.
  kChunk,       ///< part `begin` of `count` along `dim`, as torch.chunk cuts
  kTranspose,   ///< two dims (`order`) change places
  kInterleave,  ///< even indices of `dim`, then odd ones
  kRope,        ///< the same within each of `count` heads
};

/// Fields as in Expression, where not said otherwise above.
struct ExpressionTemplate {
  Form form = Form::kSource;
  NameTemplate key;
  NameTemplate scales;
  std::optional<NameTemplate> zeros;
  std::optional<NameTemplate> tensor_scale;
  std::optional<NameTemplate> groups;
  Decoding decoding;
  std::optional<DType> product;
  std::vector<ExpressionTemplate> parts;
  std::size_t dim = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::optional<std::uint64_t> count;
  std::vector<std::uint64_t> factors;
  std::vector<std::size_t> order;
  Shape shape;
  double fill = 0;
  std::string over;
  bool inverse = false;  ///< kInterleave, kRope

  /// The same expression, every key standing for itself.
  LADING_API static ExpressionTemplate literal(const Expression& expression);

  friend bool operator==(const ExpressionTemplate&, const ExpressionTemplate&) = default;
};

enum class RuleKind : std::uint8_t {
  kRename,         ///< the key `from` is the model tensor `to`
  kRenamePattern,  ///< every key that RE2 `from` matches wholly; `to` may use \1 … \9
  kIgnore,         ///< keys that RE2 `from` matches wholly are left alone, on purpose (R46)
  kIgnoreKey,      ///< ignores exactly the key `from`
  kBuild,          ///< the model tensors that the template `to` names are made by the expression
};

struct Rule {
  std::string id;
  RuleKind kind = RuleKind::kRename;
  std::string from;
  std::string to;
  bool optional = false;  ///< may match nothing: a library's table, not a user's word
  std::shared_ptr<const ExpressionTemplate> expression;

  LADING_API static Rule rename(std::string id, std::string from, std::string to);
  LADING_API static Rule rename_pattern(std::string id, std::string from, std::string to);
  LADING_API static Rule ignore(std::string id, std::string from);
  LADING_API static Rule ignore_key(std::string id, std::string from);
  LADING_API static Rule build(std::string id, std::string to, ExpressionTemplate expression);
  /// One model tensor: `name` and the expression's keys stand for themselves, braces and all.
  LADING_API static Rule build_one(std::string id, const std::string& name, const Expression& expression);
  [[nodiscard]] LADING_API Rule make_optional() &&;
};

struct Mapping {
  std::vector<Rule> rules;
};

}  // namespace lading::mapping
