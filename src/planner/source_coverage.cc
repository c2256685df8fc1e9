#include "planner/source_coverage.h"

#include <algorithm>
#include <map>
#include <utility>

namespace lading::planner {
namespace {

using mapping::Piece;
using mapping::PieceLoop;

struct Interval {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};
using Indices = std::vector<Interval>;  // sorted, apart from each other

// The indices of one dim that a piece reads.
Indices indices_of(const Piece& piece, std::size_t dim) {
  std::vector<PieceLoop> loops;
  for (const PieceLoop& loop : piece.loops) {
    if (loop.source_dim == dim && loop.count > 1) loops.push_back(loop);
  }
  std::sort(loops.begin(), loops.end(),
            [](const PieceLoop& a, const PieceLoop& b) { return a.source_step < b.source_step; });
  Indices indices = {{piece.source_origin[dim], piece.source_origin[dim] + 1}};
  for (const PieceLoop& loop : loops) {
    const Interval first = indices.front();
    if (indices.size() == 1 && loop.source_step <= first.end - first.begin) {
      indices.front().end += (loop.count - 1) * loop.source_step;
      continue;
    }
    Indices repeated;
    repeated.reserve(indices.size() * loop.count);
    for (std::uint64_t i = 0; i < loop.count; ++i) {
      for (const Interval& one : indices)
        repeated.push_back({one.begin + i * loop.source_step, one.end + i * loop.source_step});
    }
    std::sort(repeated.begin(), repeated.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
    indices.clear();
    for (const Interval& one : repeated) {
      if (!indices.empty() && one.begin <= indices.back().end) {
        indices.back().end = std::max(indices.back().end, one.end);
      } else {
        indices.push_back(one);
      }
    }
  }
  return indices;
}

class Coverage {
 public:
  Coverage(const Shape& shape, const std::vector<const Piece*>& pieces) : shape_(shape) {
    for (const Piece* piece : pieces) {
      std::vector<Indices>& dims = reads_.emplace_back();
      for (std::size_t d = 0; d < shape.rank(); ++d) dims.push_back(indices_of(*piece, d));
    }
  }

  [[nodiscard]] std::uint64_t run() const {
    std::vector<std::uint32_t> all(reads_.size());
    for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = i;
    return of(0, all);
  }

 private:
  struct Edge {
    std::uint64_t at = 0;
    std::uint32_t piece = 0;
    bool begins = false;
  };

  // Sweeps over one dim. Between two edges the same pieces read; what they cover of the dims behind is worked out once
  // for each such set.
  [[nodiscard]] std::uint64_t of(std::size_t dim, const std::vector<std::uint32_t>& pieces) const {
    if (pieces.empty()) return 0;
    if (dim == shape_.rank()) return 1;
    std::vector<Edge> edges;
    for (const std::uint32_t piece : pieces) {
      for (const Interval& one : reads_[piece][dim]) {
        edges.push_back({one.begin, piece, true});
        edges.push_back({one.end, piece, false});
      }
    }
    std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.at < b.at; });
    std::map<std::vector<std::uint32_t>, std::uint64_t> known;
    std::vector<std::uint32_t> active;  // sorted
    std::uint64_t covered = 0;
    for (std::size_t e = 0; e < edges.size(); ++e) {
      const auto place = std::lower_bound(active.begin(), active.end(), edges[e].piece);
      if (edges[e].begins) {
        active.insert(place, edges[e].piece);
      } else {
        active.erase(place);
      }
      if (e + 1 == edges.size() || edges[e + 1].at == edges[e].at || active.empty()) continue;
      const auto [found, is_new] = known.try_emplace(active, 0);
      if (is_new) found->second = of(dim + 1, active);
      covered += found->second * (edges[e + 1].at - edges[e].at);
    }
    return covered;
  }

  const Shape& shape_;
  std::vector<std::vector<Indices>> reads_;  // by piece and dim
};

}  // namespace

std::uint64_t covered_elems(const Shape& shape, const std::vector<const Piece*>& pieces) {
  const std::uint64_t all = shape.num_elems().value_or(0);
  // No expression reads an element twice in one piece.
  for (const Piece* piece : pieces) {
    if (piece->elems() >= all) return all;
  }
  return Coverage(shape, pieces).run();
}

}  // namespace lading::planner
