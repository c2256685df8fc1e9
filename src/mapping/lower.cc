// From an expression template to an expression: variables bound, stacks counted, what people say spelled out.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "base/text.h"
#include "mapping/pieces.h"
#include "mapping/template.h"

namespace lading::mapping {
namespace {

Error no_fit(std::string message) { return Error(Code::kMapping, std::move(message)).by_rule("R47"); }

// What is known of a shape, seen from the target down: a concat hides the extent of one dim, a reshape all.
using Extents = std::optional<std::vector<std::optional<std::uint64_t>>>;

Extents extents_of(const Shape* shape) {
  if (shape == nullptr) return std::nullopt;
  return std::vector<std::optional<std::uint64_t>>(shape->begin(), shape->end());
}

// The extents of a part of `node`, if `whole` are the node's own.
Extents part_extents(const ExpressionTemplate& node, const Extents& whole) {
  if (!whole) return std::nullopt;
  const std::size_t rank = whole->size();
  const auto inside = [&](std::size_t dim) { return dim < rank; };
  Extents part = whole;
  switch (node.form) {
    case Form::kSource:
    case Form::kDequantize:
    case Form::kRearrange:
    case Form::kInterleave:
    case Form::kRope: return part;
    case Form::kReshape: return std::nullopt;
    case Form::kConcat:
      if (node.parts.size() == 1) return part;
      [[fallthrough]];
    case Form::kSlice:
    case Form::kPad:
    case Form::kChunk:
      if (!inside(node.dim)) return std::nullopt;
      (*part)[node.dim].reset();
      return part;
    case Form::kStack:
    case Form::kStackOver:
      if (!inside(node.dim)) return std::nullopt;
      part->erase(part->begin() + static_cast<std::ptrdiff_t>(node.dim));
      return part;
    case Form::kPermute:
    case Form::kTranspose: break;
  }
  if (!std::all_of(node.order.begin(), node.order.end(), inside)) return std::nullopt;
  if (node.form == Form::kTranspose) {
    std::swap((*part)[node.order[0]], (*part)[node.order[1]]);
    return part;
  }
  if (node.order.size() != rank) return std::nullopt;
  for (std::size_t i = 0; i < rank; ++i) (*part)[node.order[i]] = (*whole)[i];
  return part;
}

// How many parts a stack over a variable has. The model says it, not the keys that happen to be there (R47).
Result<std::uint64_t> stack_count(const ExpressionTemplate& node, const Extents& extents) {
  if (extents && node.dim >= extents->size()) {
    return fail(
        no_fit(fmt::format("the stack over {{{}}} makes dim {}, which the tensor does not have", node.over, node.dim)));
  }
  const std::optional<std::uint64_t> extent = extents ? (*extents)[node.dim] : std::nullopt;
  if (!extent && !node.count) {
    return fail(no_fit(fmt::format("the model's shape does not determine the range of {{{}}}", node.over))
                    .try_this("Give the stack a \"count\"."));
  }
  if (extent && node.count && *extent != *node.count) {
    return fail(no_fit(fmt::format("the count of the stack over {{{}}} differs from the model's", node.over))
                    .wanted(fmt::format("{}", *extent))
                    .got(fmt::format("{}", *node.count)));
  }
  const std::uint64_t count = extent ? *extent : *node.count;
  if (count == 0) return fail(no_fit(fmt::format("the stack over {{{}}} has no parts", node.over)));
  if (count > kMaxSources || !checked_add(node.begin, count)) {
    return fail(no_fit(fmt::format("the stack over {{{}}} has too many parts", node.over))
                    .wanted(fmt::format("at most {}", kMaxSources))
                    .got(fmt::format("{}", count)));
  }
  return count;
}

// Those of the node itself, in the order of reading.
std::vector<const NameTemplate*> keys_of(const ExpressionTemplate& node) {
  if (node.form != Form::kSource && node.form != Form::kDequantize) return {};
  std::vector<const NameTemplate*> keys = {&node.key};
  if (node.form == Form::kSource) return keys;
  keys.push_back(&node.scales);
  if (node.zeros) keys.push_back(&*node.zeros);
  if (node.tensor_scale) keys.push_back(&*node.tensor_scale);
  if (node.groups) keys.push_back(&*node.groups);
  return keys;
}

Result<void> collect(const ExpressionTemplate& node, Bindings& bindings, const Extents& extents,
                     std::vector<std::string>& keys) {
  if (node.form == Form::kSource || node.form == Form::kDequantize) {
    if (keys.size() >= kMaxSources)
      return fail(no_fit(fmt::format("the expression has more than {} sources", kMaxSources)));
    for (const NameTemplate* key : keys_of(node)) keys.push_back(key->render(bindings));
    return {};
  }
  const Extents inner = part_extents(node, extents);
  if (node.form != Form::kStackOver) {
    for (const ExpressionTemplate& part : node.parts) LADING_TRY(collect(part, bindings, inner, keys));
    return {};
  }
  LADING_ASSIGN_OR_RETURN(const std::uint64_t count, stack_count(node, extents));
  bindings.emplace_back(node.over, "");
  for (std::uint64_t i = 0; i < count; ++i) {
    bindings.back().second = fmt::format("{}", node.begin + i);
    LADING_TRY(collect(node.parts.front(), bindings, inner, keys));
  }
  bindings.pop_back();
  return {};
}

class Lowering {
 public:
  Lowering(Bindings bindings, const ShapeOf& shape_of) : bindings_(std::move(bindings)), shape_of_(shape_of) {}

  Result<Expression, Errors> run(const ExpressionTemplate& node, const Extents& extents) {
    if (node.form == Form::kSource) return Expression::source(node.key.render(bindings_));
    if (node.form == Form::kDequantize) return dequantize(node);
    const Extents inner = part_extents(node, extents);
    if (node.form == Form::kStackOver) return stack_over(node, extents, inner);
    std::vector<Expression> parts;
    parts.reserve(node.parts.size());
    for (const ExpressionTemplate& part : node.parts) {
      LADING_ASSIGN_OR_RETURN(Expression lowered, run(part, inner));
      parts.push_back(std::move(lowered));
    }
    if (node.form == Form::kConcat) return Expression::concat(node.dim, std::move(parts));
    if (node.form == Form::kStack) return Expression::stack(node.dim, std::move(parts));
    LADING_CHECK(parts.size() == 1);
    return unary(node, std::move(parts.front()));
  }

 private:
  [[nodiscard]] Expression dequantize(const ExpressionTemplate& node) const {
    Expression expression = Expression::dequantize(node.key.render(bindings_), node.scales.render(bindings_),
                                                   node.shape, node.product, node.decoding);
    if (node.zeros) expression.zeros = node.zeros->render(bindings_);
    if (node.tensor_scale) expression.tensor_scale = node.tensor_scale->render(bindings_);
    if (node.groups) expression.groups = node.groups->render(bindings_);
    return expression;
  }

  Result<Expression, Errors> stack_over(const ExpressionTemplate& node, const Extents& extents, const Extents& inner) {
    auto count = stack_count(node, extents);
    if (!count) return fail(Errors(std::move(count).error()));
    std::vector<Expression> parts;
    parts.reserve(*count);
    bindings_.emplace_back(node.over, "");
    for (std::uint64_t i = 0; i < *count; ++i) {
      bindings_.back().second = fmt::format("{}", node.begin + i);
      LADING_ASSIGN_OR_RETURN(Expression part, run(node.parts.front(), inner));
      parts.push_back(std::move(part));
    }
    bindings_.pop_back();
    return Expression::stack(node.dim, std::move(parts));
  }

  Result<Expression, Errors> unary(const ExpressionTemplate& node, Expression part) {
    switch (node.form) {
      case Form::kSlice: return Expression::slice(std::move(part), node.dim, node.begin, node.end);
      case Form::kPermute: return Expression::permute(std::move(part), node.order);
      case Form::kRearrange: return Expression::rearrange(std::move(part), node.dim, node.factors, node.order);
      case Form::kReshape: return Expression::reshape(std::move(part), node.shape);
      case Form::kPad: return Expression::pad(std::move(part), node.dim, node.end, node.fill);
      case Form::kTranspose:
      case Form::kChunk:
      case Form::kInterleave:
      case Form::kRope: break;
      case Form::kSource:
      case Form::kDequantize:
      case Form::kConcat:
      case Form::kStack:
      case Form::kStackOver: LADING_CHECK(false);  // run() has done these
    }
    // The rest depends on the shape of the part. Working the part out is the one place that knows it.
    LADING_ASSIGN_OR_RETURN(const Pieces pieces, expand(part, shape_of_));
    if (node.form == Form::kTranspose) return transpose(node, std::move(part), pieces.shape);
    if (node.dim >= pieces.shape.rank())
      return fail(Errors(no_fit(fmt::format("{} has no dim {}", part.text(), node.dim)).got(pieces.shape.text())));
    const std::uint64_t extent = pieces.shape[node.dim];
    if (node.form == Form::kChunk) return chunk(node, std::move(part), extent);
    return interleave(node, std::move(part), extent);
  }

  static Result<Expression, Errors> transpose(const ExpressionTemplate& node, Expression part, const Shape& shape) {
    std::vector<std::size_t> order(shape.rank());
    for (std::size_t d = 0; d < order.size(); ++d) order[d] = d;
    if (node.order[0] >= order.size() || node.order[1] >= order.size())
      return fail(Errors(no_fit(fmt::format("{} does not have the dims to transpose", part.text())).got(shape.text())));
    std::swap(order[node.order[0]], order[node.order[1]]);
    return Expression::permute(std::move(part), std::move(order));
  }

  // torch.chunk: all parts but the last have ceil(n / count), and the last ones may not exist at all.
  static Result<Expression, Errors> chunk(const ExpressionTemplate& node, Expression part, std::uint64_t extent) {
    const std::uint64_t size = extent == 0 ? 0 : (extent - 1) / *node.count + 1;
    const auto begin = checked_mul(size, node.begin);
    if (!begin || (extent != 0 && *begin >= extent)) {
      return fail(Errors(no_fit(fmt::format("{}: an extent of {} in {} chunks has no chunk {}", part.text(), extent,
                                            *node.count, node.begin))));
    }
    return Expression::slice(std::move(part), node.dim, *begin, std::min(extent, *begin + size));
  }

  static Result<Expression, Errors> interleave(const ExpressionTemplate& node, Expression part, std::uint64_t extent) {
    const std::uint64_t heads = node.form == Form::kRope ? *node.count : 1;
    if (extent % heads != 0 || extent / heads % 2 != 0) {
      return fail(Errors(no_fit(fmt::format("{}: dim {} does not divide into pairs", part.text(), node.dim))
                             .wanted(fmt::format("{} times an even number", heads))
                             .got(fmt::format("{}", extent))));
    }
    const std::uint64_t half = extent / heads / 2;
    std::vector<std::uint64_t> factors = {heads, half, 2};
    if (node.inverse) factors = {heads, 2, half};
    if (node.form == Form::kRope)
      return Expression::rearrange(std::move(part), node.dim, std::move(factors), {0, 2, 1});
    factors.erase(factors.begin());
    return Expression::rearrange(std::move(part), node.dim, std::move(factors), {1, 0});
  }

  Bindings bindings_;
  const ShapeOf& shape_of_;
};

bool uses(const ExpressionTemplate& node, const std::string& variable) {
  const auto has = [&](const NameTemplate* key) {
    const std::vector<std::string> names = key->variables();
    return std::find(names.begin(), names.end(), variable) != names.end();
  };
  const std::vector<const NameTemplate*> keys = keys_of(node);
  return std::any_of(keys.begin(), keys.end(), has) ||
         std::any_of(node.parts.begin(), node.parts.end(), [&](const auto& part) { return uses(part, variable); });
}

Form form_of(Op op) {
  switch (op) {
    case Op::kSource: return Form::kSource;
    case Op::kConcat: return Form::kConcat;
    case Op::kStack: return Form::kStack;
    case Op::kSlice: return Form::kSlice;
    case Op::kPermute: return Form::kPermute;
    case Op::kRearrange: return Form::kRearrange;
    case Op::kReshape: return Form::kReshape;
    case Op::kDequantize: return Form::kDequantize;
    case Op::kPad: break;
  }
  return Form::kPad;
}

}  // namespace

ExpressionTemplate ExpressionTemplate::literal(const Expression& expression) {
  ExpressionTemplate result;
  result.form = form_of(expression.op);
  result.key = NameTemplate::literal(expression.key);
  result.scales = NameTemplate::literal(expression.scales);
  if (!expression.zeros.empty()) result.zeros = NameTemplate::literal(expression.zeros);
  if (!expression.tensor_scale.empty()) result.tensor_scale = NameTemplate::literal(expression.tensor_scale);
  if (!expression.groups.empty()) result.groups = NameTemplate::literal(expression.groups);
  result.decoding = expression.decoding;
  result.product = expression.product;
  for (const Expression& part : expression.parts) result.parts.push_back(literal(part));
  result.dim = expression.dim;
  result.begin = expression.begin;
  result.end = expression.end;
  result.factors = expression.factors;
  result.order = expression.order;
  result.shape = expression.shape;
  result.fill = expression.fill;
  return result;
}

Result<std::vector<std::string>> source_keys(const Instance& instance) {
  std::vector<std::string> keys;
  Bindings bindings = instance.bindings;
  LADING_TRY(collect(instance.expression, bindings, extents_of(instance.target), keys));
  return keys;
}

Result<Expression, Errors> lower(const Instance& instance, const ShapeOf& shape_of) {
  return Lowering(instance.bindings, shape_of).run(instance.expression, extents_of(instance.target));
}

std::optional<std::string> find_bad_variable(const ExpressionTemplate& expression, std::vector<std::string> bound) {
  const auto is_bound = [&](const std::string& name) {
    return std::find(bound.begin(), bound.end(), name) != bound.end();
  };
  for (const NameTemplate* key : keys_of(expression)) {
    for (const std::string& name : key->variables()) {
      if (!is_bound(name)) return fmt::format("the variable {{{}}} in {} has no value", name, quote(key->text()));
    }
  }
  if (expression.form == Form::kStackOver) {
    if (is_bound(expression.over))
      return fmt::format("the variable {{{}}} is already bound, so that no stack can run over it", expression.over);
    if (!uses(expression, expression.over)) return fmt::format("no key beneath the stack uses {{{}}}", expression.over);
    bound.push_back(expression.over);
  }
  for (const ExpressionTemplate& part : expression.parts) {
    if (auto bad = find_bad_variable(part, bound)) return bad;
  }
  return std::nullopt;
}

}  // namespace lading::mapping
