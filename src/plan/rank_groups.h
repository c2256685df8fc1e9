// Groups of ranks whose plans are the same but for offsets, so that a plan of 512 ranks is written as a few.
//
// Shares that are cut evenly begin at multiples of their size, so an offset is most often a base and a step for each
// axis of the mesh: 16 rows of 8192 bytes on each of 512 ranks are `base 0, step 131072`.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/plan.h"

namespace lading::plan {

/// One offset on all ranks of a group.
struct Offset {
  std::uint64_t base = 0;            ///< on all of them, or where all coordinates are 0
  std::vector<std::uint64_t> steps;  ///< by axis of the mesh; empty: the base alone
  std::vector<std::uint64_t> list;   ///< by member, if base and steps cannot say it
};

struct RankGroup {
  std::vector<std::size_t> members;  ///< into Plan::ranks
  /// In the order of destinations, lists and transfers: where each begins in its file and in memory; then where each
  /// read begins, and each read of scales; behind it, where it reads zero points, that of these.
  std::vector<Offset> offsets;
};

[[nodiscard]] std::vector<RankGroup> group_ranks(const Plan& plan);

}  // namespace lading::plan
