// Which ranks have a tensor: what its owner cuts say. Looks at the places that owners are named by, not at
// every rank, so that a mesh of a million ranks costs no more than its pipeline stages.
#pragma once

#include <cstdint>
#include <optional>

#include "layout/layout.h"

namespace lading::plan {

/// Whether some rank has memory for both. With more than 2^16 places to look at: true.
[[nodiscard]] bool can_meet(const layout::Slot& one, const layout::Slot& two, const layout::Mesh& mesh);

/// A rank that has a tensor placed as `user`, in any slot, and none placed as `used`; nothing if there is none.
[[nodiscard]] std::optional<std::uint64_t> rank_without(const layout::Placement& user, const layout::Placement& used,
                                                        const layout::Mesh& mesh);

}  // namespace lading::plan
