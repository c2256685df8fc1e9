// Whether an expression template has what its form needs. A document cannot say otherwise; a program can.
#include <fmt/format.h>

#include "mapping/template.h"

namespace lading::mapping {
namespace {

// As deep as a document may be.
constexpr std::size_t kMaxDepth = 64;

std::optional<std::string> find_bad_parts(const ExpressionTemplate& node) {
  switch (node.form) {
    case Form::kSource: return node.parts.empty() ? std::nullopt : std::optional<std::string>("a source has no parts");
    case Form::kConcat:
    case Form::kStack:
      return node.parts.empty() ? std::optional<std::string>("a concat or a stack has one part or more") : std::nullopt;
    default:
      return node.parts.size() == 1 ? std::nullopt
                                    : std::optional(fmt::format("it has {} parts, not one", node.parts.size()));
  }
}

std::optional<std::string> find_bad_numbers(const ExpressionTemplate& node) {
  switch (node.form) {
    case Form::kStackOver: return node.over.empty() ? std::optional("a stack over no variable") : std::nullopt;
    case Form::kTranspose: return node.order.size() == 2 ? std::nullopt : std::optional("a transpose has two dims");
    case Form::kChunk:
      return node.count.value_or(0) > node.begin ? std::nullopt : std::optional("not one of the chunks");
    case Form::kRope: return node.count.value_or(0) > 0 ? std::nullopt : std::optional("a rope has one head or more");
    default: return std::nullopt;
  }
}

std::optional<std::string> find_bad_form(const ExpressionTemplate& node, std::size_t depth) {
  if (depth == kMaxDepth) return fmt::format("the expression is more than {} levels deep", kMaxDepth);
  if (auto bad = find_bad_parts(node)) return bad;
  if (auto bad = find_bad_numbers(node)) return bad;
  for (const ExpressionTemplate& part : node.parts) {
    if (auto bad = find_bad_form(part, depth + 1)) return bad;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> find_bad_form(const ExpressionTemplate& expression) { return find_bad_form(expression, 0); }

}  // namespace lading::mapping
