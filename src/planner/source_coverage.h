// Which elements of a checkpoint's tensors are read by something, counted once however often they are.
#pragma once

#include <cstdint>
#include <vector>

#include "lading/shape.h"
#include "mapping/expression.h"
#include "mapping/pieces.h"

namespace lading::planner {

/// Elements of a source of this shape that at least one of the pieces reads. Pieces of that source only, no fills.
/// What a piece reads is a product of one set of indices per dim, so the cost is that of the sets, not of the
/// elements; one piece that reads everything costs nothing.
[[nodiscard]] std::uint64_t covered_elems(const Shape& shape, const std::vector<const mapping::Piece*>& pieces);

}  // namespace lading::planner
