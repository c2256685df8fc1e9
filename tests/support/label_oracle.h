// For tests only: what expressions mean, by moving labels one by one; and random expressions to try.
// Shares nothing with mapping/expand.cc.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "mapping/expression.h"

namespace lading::mapping::oracle {

// A dense array of labels in row-major order: each element says where it came from.
struct Labels {
  std::vector<std::uint64_t> dims;
  std::vector<std::int64_t> values;
};

inline constexpr std::int64_t kFillLabel = -7;
inline constexpr std::int64_t kUnwritten = -1;

inline std::uint64_t product(const std::vector<std::uint64_t>& dims) {
  return std::accumulate(dims.begin(), dims.end(), std::uint64_t{1}, std::multiplies<>());
}

inline std::vector<std::uint64_t> unravel(std::uint64_t flat, const std::vector<std::uint64_t>& dims) {
  std::vector<std::uint64_t> index(dims.size());
  for (std::size_t d = dims.size(); d-- > 0;) {
    index[d] = flat % dims[d];
    flat /= dims[d];
  }
  return index;
}

inline std::uint64_t ravel(const std::vector<std::uint64_t>& index, const std::vector<std::uint64_t>& dims) {
  std::uint64_t flat = 0;
  for (std::size_t d = 0; d < dims.size(); ++d) flat = flat * dims[d] + index[d];
  return flat;
}

using Sources = std::map<std::string, Labels, std::less<>>;

// Code c of the element with label l has label l + c * kCodeStep; labels of elements are below it.
inline constexpr std::int64_t kCodeStep = std::int64_t{1} << 40;

inline Labels codes_of(const Labels& elements, std::uint64_t per_element) {
  Labels codes{elements.dims, {}};
  codes.dims.push_back(per_element);
  for (const std::int64_t label : elements.values) {
    for (std::uint64_t c = 0; c < per_element; ++c)
      codes.values.push_back(label + static_cast<std::int64_t>(c) * kCodeStep);
  }
  return codes;
}

// What an expression means, element by element. `dequantize` changes values and moves no elements; codes that were
// packed have a dim of their own.
inline Labels evaluate(const Expression& e, const Sources& sources) {
  if (e.op == Op::kSource || e.op == Op::kDequantize) {
    const Labels& key = sources.find(e.key)->second;
    return e.decoding.code ? codes_of(key, e.decoding.per_element) : key;
  }
  std::vector<Labels> parts;
  for (const Expression& part : e.parts) parts.push_back(evaluate(part, sources));
  Labels out;
  out.dims = parts.front().dims;
  switch (e.op) {
    case Op::kConcat:
      out.dims[e.dim] = 0;
      for (const Labels& part : parts) out.dims[e.dim] += part.dims[e.dim];
      break;
    case Op::kStack: out.dims.insert(out.dims.begin() + static_cast<std::ptrdiff_t>(e.dim), parts.size()); break;
    case Op::kSlice: out.dims[e.dim] = e.end - e.begin; break;
    case Op::kPermute:
      for (std::size_t i = 0; i < e.order.size(); ++i) out.dims[i] = parts[0].dims[e.order[i]];
      break;
    case Op::kReshape: out.dims.assign(e.shape.begin(), e.shape.end()); break;
    case Op::kPad: out.dims[e.dim] = e.end; break;
    default: break;
  }
  out.values.resize(product(out.dims));
  for (std::uint64_t flat = 0; flat < out.values.size(); ++flat) {
    std::vector<std::uint64_t> index = unravel(flat, out.dims);
    std::size_t part = 0;
    switch (e.op) {
      case Op::kConcat:
        while (index[e.dim] >= parts[part].dims[e.dim]) index[e.dim] -= parts[part++].dims[e.dim];
        break;
      case Op::kStack:
        part = index[e.dim];
        index.erase(index.begin() + static_cast<std::ptrdiff_t>(e.dim));
        break;
      case Op::kSlice: index[e.dim] += e.begin; break;
      case Op::kPermute: {
        std::vector<std::uint64_t> old(index.size());
        for (std::size_t i = 0; i < e.order.size(); ++i) old[e.order[i]] = index[i];
        index = old;
        break;
      }
      case Op::kRearrange: {
        std::vector<std::uint64_t> new_factors;
        for (const std::size_t j : e.order) new_factors.push_back(e.factors[j]);
        const auto new_digits = unravel(index[e.dim], new_factors);
        std::vector<std::uint64_t> digits(e.factors.size());
        for (std::size_t i = 0; i < e.order.size(); ++i) digits[e.order[i]] = new_digits[i];
        index[e.dim] = ravel(digits, e.factors);
        break;
      }
      case Op::kReshape: index = unravel(flat, parts[0].dims); break;
      case Op::kPad:
        if (index[e.dim] >= parts[0].dims[e.dim]) {
          out.values[flat] = kFillLabel;
          continue;
        }
        break;
      default: break;
    }
    out.values[flat] = parts[part].values[ravel(index, parts[part].dims)];
  }
  return out;
}

// Random expressions of a few levels over small sources, with their shapes known as they are built.
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : random_(seed) {}

  Sources sources;
  std::map<std::string, Shape, std::less<>> shapes;

  std::uint64_t below(std::uint64_t bound) {
    return std::uniform_int_distribution<std::uint64_t>(0, bound - 1)(random_);
  }

  std::pair<Expression, std::vector<std::uint64_t>> make(int levels) {
    if (levels == 0) return leaf(random_dims());
    switch (below(8)) {
      case 0: return concat(levels);
      case 1: return stack(levels);
      case 2: return slice(levels);
      case 3: return permute(levels);
      case 4:
      case 5: return rearrange(levels);
      case 6: return reshape(levels);
      default: return pad(levels);
    }
  }

 private:
  using Made = std::pair<Expression, std::vector<std::uint64_t>>;

  std::vector<std::uint64_t> random_dims() {
    std::vector<std::uint64_t> dims(below(4));
    for (auto& dim : dims) dim = below(12) == 0 ? below(2) : 1 + below(6);
    return dims;
  }

  Made leaf(std::vector<std::uint64_t> dims) {
    const std::string key = "s" + std::to_string(sources.size());
    Labels labels{dims, std::vector<std::int64_t>(product(dims))};
    std::iota(labels.values.begin(), labels.values.end(), static_cast<std::int64_t>(1000 * sources.size()));
    sources.emplace(key, std::move(labels));
    shapes.emplace(key, Shape(dims));
    return {Expression::source(key), std::move(dims)};
  }

  Made concat(int levels) {
    auto [first, dims] = make(levels - 1);
    if (dims.empty()) return {std::move(first), dims};
    const std::size_t dim = below(dims.size());
    std::vector<Expression> parts;
    parts.push_back(std::move(first));
    std::uint64_t extent = dims[dim];
    for (std::uint64_t i = below(3); i > 0; --i) {
      auto other = dims;
      other[dim] = below(5);
      extent += other[dim];
      parts.push_back(leaf(other).first);
    }
    dims[dim] = extent;
    return {Expression::concat(dim, std::move(parts)), dims};
  }

  Made stack(int levels) {
    auto [first, dims] = make(levels - 1);
    std::vector<Expression> parts;
    parts.push_back(std::move(first));
    for (std::uint64_t i = below(3); i > 0; --i) parts.push_back(leaf(dims).first);
    const std::size_t dim = below(dims.size() + 1);
    dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(dim), parts.size());
    return {Expression::stack(dim, std::move(parts)), dims};
  }

  Made slice(int levels) {
    auto [part, dims] = make(levels - 1);
    if (dims.empty()) return {std::move(part), dims};
    const std::size_t dim = below(dims.size());
    const std::uint64_t begin = below(dims[dim] + 1);
    const std::uint64_t end = begin + below(dims[dim] - begin + 1);
    dims[dim] = end - begin;
    return {Expression::slice(std::move(part), dim, begin, end), dims};
  }

  std::vector<std::size_t> shuffled(std::size_t count) {
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    return order;
  }

  Made permute(int levels) {
    auto [part, dims] = make(levels - 1);
    const auto order = shuffled(dims.size());
    std::vector<std::uint64_t> moved;
    for (const std::size_t d : order) moved.push_back(dims[d]);
    return {Expression::permute(std::move(part), order), moved};
  }

  std::vector<std::uint64_t> factorised(std::uint64_t number) {
    std::vector<std::uint64_t> factors;
    while (number > 1) {
      std::uint64_t factor = 1 + below(number);
      while (number % factor != 0) --factor;
      if (factor == 1 && below(3) != 0) factor = number;
      factors.push_back(factor);
      number /= factor;
    }
    if (number == 0) return {0};
    if (factors.empty() || below(4) == 0) factors.push_back(1);
    return factors;
  }

  Made rearrange(int levels) {
    auto [part, dims] = make(levels - 1);
    if (dims.empty()) return {std::move(part), dims};
    const std::size_t dim = below(dims.size());
    const auto factors = factorised(dims[dim]);
    return {Expression::rearrange(std::move(part), dim, factors, shuffled(factors.size())), dims};
  }

  Made reshape(int levels) {
    auto [part, dims] = make(levels - 1);
    auto shape = factorised(product(dims));
    return {Expression::reshape(std::move(part), Shape(shape)), shape};
  }

  Made pad(int levels) {
    auto [part, dims] = make(levels - 1);
    if (dims.empty()) return {std::move(part), dims};
    const std::size_t dim = below(dims.size());
    dims[dim] += below(4);
    return {Expression::pad(std::move(part), dim, dims[dim], 0.5), dims};
  }

  std::mt19937_64 random_;
};

}  // namespace lading::mapping::oracle
