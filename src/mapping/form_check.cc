// Whether an expression template has what its form needs. A document cannot say otherwise; a program can.
#include <fmt/format.h>

#include "base/enumerator.h"
#include "mapping/decoding_json.h"
#include "mapping/template.h"

namespace lading::mapping {
namespace {

// JSON has 64 levels. A ledger, which also holds the expression, has a few of its own around it.
constexpr std::size_t kMaxJsonLevels = 56;
constexpr std::size_t kMaxDims = 64;

// {"slice": {"of": …}} has two, {"concat": {"parts": […]}} three.
std::size_t json_levels(Form form) { return form == Form::kConcat || form == Form::kStack ? 3 : 2; }

std::optional<std::string> find_bad_parts(const ExpressionTemplate& node) {
  switch (node.form) {
    case Form::kSource:
    case Form::kDequantize:
      return node.parts.empty() ? std::nullopt : std::optional<std::string>("a source must not have parts");
    case Form::kConcat:
    case Form::kStack:
      return node.parts.empty() ? std::optional<std::string>("a concat or a stack needs at least one part")
                                : std::nullopt;
    default:
      return node.parts.size() == 1 ? std::nullopt
                                    : std::optional(fmt::format("it has {} parts instead of one", node.parts.size()));
  }
}

bool is_product_dtype(const std::optional<DType>& dtype) {
  return !dtype || (class_of(*dtype) == DTypeClass::kFloat && bits(*dtype) >= 16);
}

std::optional<std::string> find_bad_dequantize(const ExpressionTemplate& node) {
  if (node.shape.rank() > kMaxDims) return "a block of more than 64 dims is not supported";
  if (!is_product_dtype(node.product)) return "products can only be rounded to F16, BF16, F32 or F64";
  const std::vector<DecodingProblem> problems = decoding_problems(node);
  if (problems.empty()) return std::nullopt;
  return fmt::format("{}: {}; expected {}", problems[0].member, problems[0].message, problems[0].expected);
}

std::optional<std::string> find_bad_numbers(const ExpressionTemplate& node) {
  switch (node.form) {
    case Form::kStackOver:
      return node.over.empty() ? std::optional("a stack needs a variable to run over") : std::nullopt;
    case Form::kTranspose: return node.order.size() == 2 ? std::nullopt : std::optional("a transpose needs two dims");
    case Form::kChunk:
      return node.count.value_or(0) > node.begin ? std::nullopt : std::optional("not one of the chunks");
    case Form::kDequantize: return find_bad_dequantize(node);
    case Form::kReshape:
      return node.shape.rank() <= kMaxDims ? std::nullopt
                                           : std::optional("a reshape to more than 64 dims is not supported");
    case Form::kRope:
      return node.count.value_or(0) > 0 ? std::nullopt : std::optional("a rope needs at least one head");
    default: return std::nullopt;
  }
}

std::optional<std::string> find_bad_form(const ExpressionTemplate& node, std::size_t levels) {
  if (!is_enumerator(node.form, Form::kRope)) return "the form is not a known enumerator";
  if (levels > kMaxJsonLevels) return fmt::format("the expression is more than {} levels of JSON deep", kMaxJsonLevels);
  if (auto bad = find_bad_parts(node)) return bad;
  if (auto bad = find_bad_numbers(node)) return bad;
  for (const ExpressionTemplate& part : node.parts) {
    if (auto bad = find_bad_form(part, levels + json_levels(node.form))) return bad;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> find_bad_form(const ExpressionTemplate& expression) { return find_bad_form(expression, 0); }

}  // namespace lading::mapping
