// Name templates ("layers.{layer}.experts.w1") and expressions whose keys are templates. Pure.
//
// A variable stands for a whole run of digits, mostly one dotted component, without leading zeros: so a name
// matches in one way or not at all, and numbers count in numeric order (R47). "{{" and "}}" are braces.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_reader.h"
#include "base/json_writer.h"
#include "lading/result.h"
#include "lading/shape.h"
#include "mapping/expression.h"

namespace lading::mapping {

/// Variable and its digits. Few: searched one by one.
using Bindings = std::vector<std::pair<std::string, std::string>>;

class NameTemplate {
 public:
  NameTemplate() = default;
  static Result<NameTemplate> parse(std::string_view text);
  /// A name that stands for itself, braces and all.
  static NameTemplate literal(std::string name);

  [[nodiscard]] bool has_variables() const { return !steps_.empty(); }
  [[nodiscard]] std::vector<std::string> variables() const;
  /// What every name that matches begins with.
  [[nodiscard]] const std::string& prefix() const { return prefix_; }
  [[nodiscard]] std::optional<Bindings> match(std::string_view name) const;
  /// Every variable must be bound.
  [[nodiscard]] std::string render(const Bindings& bindings) const;
  /// parse(text()) is the same template.
  [[nodiscard]] std::string text() const;

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
  // What people say; needs the shape of the part to become an Expression.
  kChunk,       ///< part `begin` of `count` along `dim`, as torch.chunk cuts
  kTranspose,   ///< two dims (`order`) change places
  kInterleave,  ///< even indices of `dim`, then odd ones
  kRope,        ///< the same within each of `count` heads
};

/// Fields as in Expression, where not said otherwise above.
struct ExpressionTemplate {
  Form form = Form::kSource;
  NameTemplate key;
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
  static ExpressionTemplate literal(const Expression& expression);

  friend bool operator==(const ExpressionTemplate&, const ExpressionTemplate&) = default;
};

/// What makes an expression out of a template. `target` may be null: then every stack must say its count.
struct Instance {
  const ExpressionTemplate& expression;
  const Bindings& bindings;
  const Shape* target = nullptr;
};

/// An expression with more sources than this is a mistake, or an attack.
inline constexpr std::size_t kMaxSources = std::size_t{1} << 20;

/// The keys that it will read, in order of reading, repeats included. Stacks are counted by the target's shape.
Result<std::vector<std::string>> source_keys(const Instance& instance);

/// All keys must be there.
Result<Expression, Errors> lower(const Instance& instance, const ShapeOf& shape_of);

/// A variable that is not in `bound`, or bound twice, or a stack over one that no key uses; as a sentence.
std::optional<std::string> find_bad_variable(const ExpressionTemplate& expression, std::vector<std::string> bound);

/// The JSON form of docs/schema/mapping.md. What is wrong is added to `errors`; `path` is where the value stands.
ExpressionTemplate read_expression(const JsonValue& value, const std::string& path, Errors& errors);
void write_expression(const ExpressionTemplate& expression, JsonWriter& writer);

/// The same form as plans have it: every key stands for itself, braces and all, and what needs a shape to be an
/// Expression (a stack over a variable, chunk, transpose, interleave, rope) is refused.
Expression read_plain_expression(const JsonValue& value, const std::string& path, Errors& errors);

}  // namespace lading::mapping
