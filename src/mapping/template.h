// From templates (lading/mapping.h) to expressions, and their JSON. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_reader.h"
#include "base/json_writer.h"
#include "lading/mapping.h"
#include "lading/result.h"
#include "lading/shape.h"
#include "mapping/expression.h"

namespace lading::mapping {

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

/// A node without the parts or numbers that its form needs, or too deep; as a sentence.
std::optional<std::string> find_bad_form(const ExpressionTemplate& expression);

/// A variable that is not in `bound`, or bound twice, or a stack over one that no key uses; as a sentence.
std::optional<std::string> find_bad_variable(const ExpressionTemplate& expression, std::vector<std::string> bound);

/// The JSON form of docs/schema/mapping.md. What is wrong is added to `errors`; `path` is where the value stands.
ExpressionTemplate read_expression(const JsonValue& value, const std::string& path, Errors& errors);
void write_expression(const ExpressionTemplate& expression, JsonWriter& writer);

/// The same form as plans have it: every key stands for itself, braces and all, and what needs a shape to be an
/// Expression (a stack over a variable, chunk, transpose, interleave, rope) is refused.
Expression read_plain_expression(const JsonValue& value, const std::string& path, Errors& errors);

}  // namespace lading::mapping
