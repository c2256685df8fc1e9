// Expressions against an oracle that moves labels one by one, with no loop nest in it.
#include "mapping/expression.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "mapping/pieces.h"
#include "support/label_oracle.h"

namespace lading::mapping {
namespace {

using namespace oracle;

// What the pieces do; fails if two of them write one element.
void run_piece(const Piece& piece, const Pieces& pieces, const Sources& sources, Labels& out) {
  const Labels* source = piece.is_fill() ? nullptr : &sources.find(pieces.sources[piece.source])->second;
  std::vector<std::uint64_t> counts;
  for (const PieceLoop& loop : piece.loops) counts.push_back(loop.count);
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
  Labels out{{pieces.shape.begin(), pieces.shape.end()}, {}};
  out.values.assign(product(out.dims), kUnwritten);
  for (const Piece& piece : pieces.pieces) run_piece(piece, pieces, sources, out);
  return out;
}

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
    ASSERT_EQ(pieces->shape, Shape(dims)) << "seed " << seed;
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
    Pieces clipped;
    clipped.shape = pieces->shape;
    clipped.sources = pieces->sources;
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
  refused(Expression::stack(0, {a, b}), "different shapes");
  refused(Expression::stack(3, {a}), "before dim 3");
  refused(Expression::slice(a, 0, 2, 5), "out of range");
  refused(Expression::slice(a, 0, 3, 2), "out of range");
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
