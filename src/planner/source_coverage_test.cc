// What pieces cover, against the elements counted one by one.
#include "planner/source_coverage.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace lading::planner {
namespace {

using mapping::Expression;
using mapping::Piece;

std::set<std::vector<std::uint64_t>> elements_of(const Piece& piece) {
  std::set<std::vector<std::uint64_t>> all = {piece.source_origin};
  for (const mapping::PieceLoop& loop : piece.loops) {
    std::set<std::vector<std::uint64_t>> more;
    for (const auto& index : all) {
      for (std::uint64_t i = 0; i < loop.count; ++i) {
        more.insert(index);
        std::vector<std::uint64_t> next = index;
        next[loop.source_dim] += i * loop.source_step;
        more.insert(std::move(next));
      }
    }
    all = std::move(more);
  }
  return all;
}

TEST(SourceCoverage, R11_AsManyAsCountedOneByOne) {
  std::mt19937_64 random(7);
  const Shape shape{6, 4, 8};
  const auto below = [&](std::uint64_t end) { return random() % end; };
  for (int round = 0; round < 300; ++round) {
    std::vector<mapping::Pieces> kept;
    for (std::uint64_t reader = 0; reader <= below(4); ++reader) {
      Expression expression = Expression::source("x");
      if (below(2) == 0) expression = Expression::rearrange(std::move(expression), 2, {4, 2}, {1, 0});
      for (std::size_t dim = 0; dim < 3; ++dim) {
        const std::uint64_t begin = below(shape[dim]);
        const std::uint64_t end = begin + 1 + below(shape[dim] - begin);
        if (below(3) != 0) expression = Expression::slice(std::move(expression), dim, begin, end);
      }
      auto pieces = mapping::expand(expression, [&](std::string_view) { return &shape; });
      ASSERT_TRUE(pieces);
      kept.push_back(*std::move(pieces));
    }
    std::vector<const Piece*> pieces;
    std::set<std::vector<std::uint64_t>> elements;
    for (const mapping::Pieces& one : kept) {
      for (const Piece& piece : one.pieces) {
        pieces.push_back(&piece);
        elements.merge(elements_of(piece));
      }
    }
    ASSERT_EQ(covered_elems(shape, pieces), elements.size()) << "round " << round;
  }
}

TEST(SourceCoverage, NothingIsReadByNobody) {
  EXPECT_EQ(covered_elems({2, 2}, {}), 0U);
  EXPECT_EQ(covered_elems({0}, {}), 0U);
}

}  // namespace
}  // namespace lading::planner
