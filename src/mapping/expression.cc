#include "mapping/expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/text.h"

namespace lading::mapping {
namespace {

void collect_keys(const Expression& expression, std::vector<std::string>& keys) {
  if (expression.op == Op::kSource || expression.op == Op::kDequantize) keys.push_back(expression.key);
  if (expression.op == Op::kDequantize) {
    for (const std::string* key :
         {&expression.scales, &expression.zeros, &expression.tensor_scale, &expression.groups}) {
      if (!key->empty()) keys.push_back(*key);
    }
  }
  for (const Expression& part : expression.parts) collect_keys(part, keys);
}

std::string parts_text(const Expression& expression) {
  std::vector<std::string> texts;
  for (const Expression& part : expression.parts) texts.push_back(part.text());
  return fmt::format("{}", fmt::join(texts, ", "));
}

Expression unary(Op op, Expression part) {
  Expression expression;
  expression.op = op;
  expression.parts.push_back(std::move(part));
  return expression;
}

}  // namespace

Expression Expression::source(std::string key) {
  Expression expression;
  expression.key = std::move(key);
  return expression;
}

Expression Expression::concat(std::size_t dim, std::vector<Expression> parts) {
  Expression expression;
  expression.op = Op::kConcat;
  expression.dim = dim;
  expression.parts = std::move(parts);
  return expression;
}

Expression Expression::stack(std::size_t dim, std::vector<Expression> parts) {
  Expression expression = concat(dim, std::move(parts));
  expression.op = Op::kStack;
  return expression;
}

Expression Expression::slice(Expression part, std::size_t dim, std::uint64_t begin, std::uint64_t end) {
  Expression expression = unary(Op::kSlice, std::move(part));
  expression.dim = dim;
  expression.begin = begin;
  expression.end = end;
  return expression;
}

Expression Expression::permute(Expression part, std::vector<std::size_t> order) {
  Expression expression = unary(Op::kPermute, std::move(part));
  expression.order = std::move(order);
  return expression;
}

Expression Expression::rearrange(Expression part, std::size_t dim, std::vector<std::uint64_t> factors,
                                 std::vector<std::size_t> order) {
  Expression expression = unary(Op::kRearrange, std::move(part));
  expression.dim = dim;
  expression.factors = std::move(factors);
  expression.order = std::move(order);
  return expression;
}

Expression Expression::reshape(Expression part, Shape shape) {
  Expression expression = unary(Op::kReshape, std::move(part));
  expression.shape = std::move(shape);
  return expression;
}

Expression Expression::pad(Expression part, std::size_t dim, std::uint64_t end, double fill) {
  // Every NaN is the same one, as in a document.
  if (std::isnan(fill)) fill = std::numeric_limits<double>::quiet_NaN();
  Expression expression = unary(Op::kPad, std::move(part));
  expression.dim = dim;
  expression.end = end;
  expression.fill = fill;
  return expression;
}

Expression Expression::dequantize(std::string key, std::string scales, Shape block, std::optional<DType> product,
                                  Decoding decoding) {
  Expression expression = source(std::move(key));
  expression.op = Op::kDequantize;
  expression.scales = std::move(scales);
  expression.shape = std::move(block);
  expression.product = product;
  expression.decoding = std::move(decoding);
  return expression;
}

std::vector<std::string> Expression::keys() const {
  std::vector<std::string> keys;
  collect_keys(*this, keys);
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

std::string Expression::text() const {
  switch (op) {
    case Op::kSource: return escape(key);
    case Op::kConcat: return fmt::format("concat({}, {})", dim, parts_text(*this));
    case Op::kStack: return fmt::format("stack({}, {})", dim, parts_text(*this));
    case Op::kSlice: return fmt::format("slice({}, {}..{}, {})", dim, begin, end, parts_text(*this));
    case Op::kPermute: return fmt::format("permute([{}], {})", fmt::join(order, ", "), parts_text(*this));
    case Op::kRearrange:
      return fmt::format("rearrange({}, [{}] to [{}], {})", dim, fmt::join(factors, ", "), fmt::join(order, ", "),
                         parts_text(*this));
    case Op::kReshape: return fmt::format("reshape({}, {})", shape.text(), parts_text(*this));
    case Op::kDequantize:
      if (decoding.code) return fmt::format("dequantize({}, {})", escape(key), escape(scales));
      return fmt::format("dequantize({}, {}, {}{})", escape(key), escape(scales), shape.text(),
                         product ? fmt::format(", {}", name(*product)) : "");
    case Op::kPad: return fmt::format("pad({}, {}, {}, {})", dim, end, fill, parts_text(*this));
  }
  return {};
}

}  // namespace lading::mapping
