// Expressions against an oracle that moves labels one by one, with no loop nest in it.
#include "mapping/expression.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace lading::mapping {
namespace {

// A dense array of labels in row-major order: each element says where it came from.
struct Labels {
  std::vector<std::uint64_t> dims;
  std::vector<std::int64_t> values;
};

constexpr std::int64_t kFillLabel = -7;
constexpr std::int64_t kUnwritten = -1;

std::uint64_t product(const std::vector<std::uint64_t>& dims) {
  return std::accumulate(dims.begin(), dims.end(), std::uint64_t{1}, std::multiplies<>());
}

std::vector<std::uint64_t> unravel(std::uint64_t flat, const std::vector<std::uint64_t>& dims) {
  std::vector<std::uint64_t> index(dims.size());
  for (std::size_t d = dims.size(); d-- > 0;) {
    index[d] = flat % dims[d];
    flat /= dims[d];
  }
  return index;
}

std::uint64_t ravel(const std::vector<std::uint64_t>& index, const std::vector<std::uint64_t>& dims) {
  std::uint64_t flat = 0;
  for (std::size_t d = 0; d < dims.size(); ++d) flat = flat * dims[d] + index[d];
  return flat;
}

using Sources = std::map<std::string, Labels, std::less<>>;

// What an expression means, element by element.
Labels evaluate(const Expression& e, const Sources& sources) {
  if (e.op == Op::kSource) return sources.find(e.key)->second;
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
    case Op::kReshape: out.dims = e.shape.dims(); break;
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

// What the pieces do; fails if two of them write one element.
void run_piece(const Piece& piece, const Pieces& pieces, const Sources& sources, Labels& out) {
  const Labels* source = piece.is_fill() ? nullptr : &sources.find(pieces.sources[piece.source])->second;
  std::vector<std::uint64_t> counts;
  for (const Loop& loop : piece.loops) counts.push_back(loop.count);
  for (std::uint64_t i = 0; i < product(counts); ++i) {
    const auto at = unravel(i, counts);
    auto from = piece.source_origin;
    auto to = piece.target_origin;
    for (std::size_t l = 0; l < at.size(); ++l) {
      if (source != nullptr) from[piece.loops[l].source_dim] += at[l] * piece.loops[l].source_step;
      to[piece.loops[l].target_dim] += at[l] * piece.loops[l].target_step;
    }
    for (std::size_t d = 0; d < to.size(); ++d) ASSERT_LT(to[d], out.dims[d]);
    std::int64_t& element = out.values[ravel(to, out.dims)];
    ASSERT_EQ(element, kUnwritten) << "written twice";
    element = source != nullptr ? source->values[ravel(from, source->dims)] : kFillLabel;
  }
}

Labels run_pieces(const Pieces& pieces, const Sources& sources) {
  Labels out{pieces.shape.dims(), {}};
  out.values.assign(product(out.dims), kUnwritten);
  for (const Piece& piece : pieces.pieces) run_piece(piece, pieces, sources, out);
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

Result<Pieces, Errors> expand_in(const Generator& generator, const Expression& expression) {
  return expand(expression, [&](std::string_view key) {
    const auto found = generator.shapes.find(key);
    return found == generator.shapes.end() ? nullptr : &found->second;
  });
}

TEST(Expand, R47_RandomExpressionsMoveEveryElementAsTheOracleDoes) {
  for (std::uint64_t seed = 0; seed < 20000; ++seed) {
    Generator generator(seed);
    const auto [expression, dims] = generator.make(static_cast<int>(1 + seed % 4));
    const auto pieces = expand_in(generator, expression);
    ASSERT_TRUE(pieces.has_value()) << "seed " << seed << ": " << pieces.error().front().text();
    ASSERT_EQ(pieces->shape.dims(), dims) << "seed " << seed;
    const Labels got = run_pieces(*pieces, generator.sources);
    const Labels want = evaluate(expression, generator.sources);
    ASSERT_EQ(got.values, want.values) << "seed " << seed << ": " << expression.text();
    if (HasFatalFailure()) FAIL() << "seed " << seed << ": " << expression.text();
  }
}

TEST(Clip, KeepsExactlyTheElementsInside) {
  for (std::uint64_t seed = 0; seed < 20000; ++seed) {
    Generator generator(seed);
    const auto [expression, dims] = generator.make(static_cast<int>(1 + seed % 3));
    if (dims.empty()) continue;
    const auto pieces = expand_in(generator, expression);
    ASSERT_TRUE(pieces.has_value());
    const std::size_t dim = generator.below(dims.size());
    const std::uint64_t begin = generator.below(dims[dim] + 1);
    const std::uint64_t end = begin + generator.below(dims[dim] - begin + 1);
    Pieces clipped{pieces->shape, pieces->sources, {}};
    for (const Piece& piece : pieces->pieces) {
      for (Piece& inside : clip(piece, dim, begin, end)) clipped.pieces.push_back(std::move(inside));
    }
    Labels want = evaluate(expression, generator.sources);
    for (std::uint64_t flat = 0; flat < want.values.size(); ++flat) {
      const std::uint64_t index = unravel(flat, dims)[dim];
      if (index < begin || index >= end) want.values[flat] = kUnwritten;
    }
    ASSERT_EQ(run_pieces(clipped, generator.sources).values, want.values)
        << "seed " << seed << ": " << expression.text();
  }
}

// The formulas of the conversions that transformers 5 uses, element by element.
TEST(Expand, R47_RopePermutationIsARearrangement) {
  Generator generator(1);
  const std::uint64_t heads = 3;
  const std::uint64_t head_dim = 8;
  generator.shapes.emplace("q", Shape{heads * head_dim, 2});
  const auto pieces =
      expand_in(generator, Expression::rearrange(Expression::source("q"), 0, {heads, head_dim / 2, 2}, {0, 2, 1}));
  ASSERT_TRUE(pieces.has_value());
  Labels labels{{heads * head_dim, 2}, std::vector<std::int64_t>(heads * head_dim * 2)};
  std::iota(labels.values.begin(), labels.values.end(), 0);
  const Labels out = run_pieces(*pieces, {{"q", labels}});
  for (std::uint64_t r = 0; r < heads * head_dim; ++r) {
    const std::uint64_t half = head_dim / 2;
    const std::uint64_t from = r / head_dim * head_dim + 2 * (r % head_dim % half) + r % head_dim / half;
    EXPECT_EQ(out.values[2 * r], static_cast<std::int64_t>(2 * from));
  }
  EXPECT_EQ(pieces->pieces.size(), 1U) << "a permutation needs no cutting";
}

TEST(Expand, R47_ExpertsFuseGateBeforeUpInNumericOrder) {
  Generator generator(1);
  std::vector<Expression> gates;
  std::vector<Expression> ups;
  for (int e = 0; e < 12; ++e) {
    generator.shapes.emplace("w1." + std::to_string(e), Shape{4, 4});
    generator.shapes.emplace("w3." + std::to_string(e), Shape{4, 4});
    gates.push_back(Expression::source("w1." + std::to_string(e)));
    ups.push_back(Expression::source("w3." + std::to_string(e)));
  }
  std::vector<Expression> both;
  both.push_back(Expression::stack(0, std::move(gates)));
  both.push_back(Expression::stack(0, std::move(ups)));
  const auto pieces = expand_in(generator, Expression::concat(1, std::move(both)));
  ASSERT_TRUE(pieces.has_value());
  EXPECT_EQ(pieces->shape, (Shape{12, 8, 4}));
  ASSERT_EQ(pieces->pieces.size(), 24U);
  const Piece& up_of_10 = pieces->pieces[12 + 10];
  EXPECT_EQ(pieces->sources[up_of_10.source], "w3.10");
  EXPECT_EQ(up_of_10.target_origin, (std::vector<std::uint64_t>{10, 4, 0}));
}

TEST(Expand, RefusesWhatDoesNotFit) {
  Generator generator(1);
  generator.shapes.emplace("a", Shape{4, 3});
  generator.shapes.emplace("b", Shape{4, 2});
  const auto refused = [&](Expression expression, std::string_view part_of_message) {
    const auto pieces = expand_in(generator, expression);
    ASSERT_FALSE(pieces.has_value()) << expression.text();
    EXPECT_NE(pieces.error().front().text().find(part_of_message), std::string::npos) << pieces.error().front().text();
  };
  const Expression a = Expression::source("a");
  const Expression b = Expression::source("b");
  refused(Expression::source("c"), "no key \"c\"");
  refused(Expression::concat(0, {a, b}), "do not fit together");
  refused(Expression::concat(2, {a}), "no dim 2");
  refused(Expression::concat(0, {}), "no parts");
  refused(Expression::stack(0, {a, b}), "not of one shape");
  refused(Expression::stack(3, {a}), "before dim 3");
  refused(Expression::slice(a, 0, 2, 5), "outside");
  refused(Expression::slice(a, 0, 3, 2), "outside");
  refused(Expression::permute(a, {0, 0}), "not a permutation");
  refused(Expression::rearrange(a, 0, {2, 3}, {1, 0}), "do not split");
  refused(Expression::reshape(a, Shape{5}), "different numbers");
  refused(Expression::pad(a, 0, 3, 0), "smaller");
}

TEST(Expand, NamesEveryKeyThatIsMissing) {
  Generator generator(1);
  const auto pieces = expand_in(generator, Expression::stack(0, {Expression::source("x"), Expression::source("y")}));
  ASSERT_FALSE(pieces.has_value());
  EXPECT_EQ(pieces.error().size(), 2U);
}

}  // namespace
}  // namespace lading::mapping
