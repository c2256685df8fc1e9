// Piece: an expression worked out: a loop nest that copies elements from one source to one target. Pure. The planner's
// arithmetic; the checker has its own, and no door to this.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/index.h"
#include "base/inline_vector.h"
#include "mapping/expression.h"

namespace lading::mapping {

using PieceSourceId = Index<struct PieceSourceTag>;  ///< into Pieces::sources

/// A loop of a piece: for i in [0, count): source index in source_dim += source_step, target likewise. Multiplied out
/// with the tensors' strides it is an ElementLoop.
struct PieceLoop {
  std::uint64_t count = 1;
  std::size_t source_dim = 0;
  std::uint64_t source_step = 1;
  std::size_t target_dim = 0;
  std::uint64_t target_step = 1;

  friend bool operator==(const PieceLoop&, const PieceLoop&) = default;
};

/// All elements of the loop nest, copied from the source's index to the target's.
struct Piece {
  PieceSourceId source = 0;  ///< none: a constant
  // Most pieces are a whole tensor.
  InlineVector<std::uint64_t, 4> source_origin;
  InlineVector<std::uint64_t, 4> target_origin;
  InlineVector<PieceLoop, 2> loops;
  double fill = 0;

  [[nodiscard]] bool is_fill() const { return source.is_none(); }
  [[nodiscard]] std::uint64_t elems() const;

  friend bool operator==(const Piece&, const Piece&) = default;
};

/// How the elements of a source are dequantized: one scale for each block.
struct PieceScaling {
  std::string scales;  ///< a key
  Shape block;
  std::optional<DType> product;  ///< that products are rounded to first
  std::string zeros = {};        ///< a key, or ""
  std::string tensor_scale = {};
  Decoding decoding = {};
  Shape shape = {};  ///< of the source: its codes, if it has any, are one more dim than the key's
  std::string groups = {};

  friend bool operator==(const PieceScaling&, const PieceScaling&) = default;
};

/// A tensor as the disjoint union of pieces.
struct Pieces {
  Shape shape;
  IndexedVector<PieceSourceId, std::string> sources;
  std::map<PieceSourceId, PieceScaling> scalings;  ///< of sources that are dequantized
  std::vector<Piece> pieces;
};

/// Works an expression out. Refuses parts that do not fit, slices that lie outside, factors that do not
/// multiply to the dim, keys that are not there. The pieces tile the shape exactly.
Result<Pieces, Errors> expand(const Expression& expression, const ShapeOf& shape_of);

/// The part of a piece whose target index in `dim` lies in [begin, end); no, one or several pieces.
std::vector<Piece> clip(const Piece& piece, std::size_t dim, std::uint64_t begin, std::uint64_t end);

}  // namespace lading::mapping
