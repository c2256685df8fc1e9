// Arithmetic on pieces: cutting them, and looking at a target dim through finer digits. Internal to the room.
//
// Along one target dim a piece reaches the indices origin + Σ i·step over the loops of that dim. The loops
// behave like the digits of a number, so a cut of one loop leaves whole loops and a few smaller nests.
#pragma once

#include <cstdint>
#include <vector>

#include "mapping/expression.h"
#include "mapping/pieces.h"

namespace lading::mapping {

/// Where the digits of one target dim go: digit j of the old index (radix factors[j], outermost first)
/// becomes an index of dim new_dim[j] that moves in steps of new_step[j].
struct DigitMap {
  std::size_t dim = 0;
  std::vector<std::uint64_t> factors;
  std::vector<std::size_t> new_dim;
  std::vector<std::uint64_t> new_step;
  std::size_t new_rank = 0;
  /// For each old dim but `dim`: which new dim it becomes.
  std::vector<std::size_t> other_dims;
};

/// The same elements, with `map.dim` taken apart. One piece becomes several where it does not end at digits.
void redigit(const Piece& piece, const DigitMap& map, std::vector<Piece>& out);

}  // namespace lading::mapping
