// Which ranks have a tensor: what its owner cuts say. Looks at the places that owners are named by, not at every rank,
// so that a mesh of a million ranks costs no more than its pipeline stages.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "layout/layout.h"

namespace lading::layout {

/// Whether the rank has this memory of a tensor.
[[nodiscard]] bool is_on(const Slot& slot, const Mesh& mesh, std::uint64_t rank);
/// Whether the rank has memory for a tensor placed so, in any slot.
[[nodiscard]] bool is_on(const Placement& placement, const Mesh& mesh, std::uint64_t rank);

/// Whether some rank has memory for both. With more than 2^20 places to look at: true.
[[nodiscard]] bool can_meet(const Slot& one, const Slot& two, const Mesh& mesh);

/// What rank_without() found.
struct RankWithout {
  std::optional<std::uint64_t> rank;
  bool is_known = true;  ///< false: more than 2^20 places to look at, and none was
};

/// A rank that has a tensor placed as `user`, in any slot, and none placed as one of `used`.
[[nodiscard]] RankWithout rank_without(const Placement& user, const std::vector<const Placement*>& used,
                                       const Mesh& mesh);

}  // namespace lading::layout
