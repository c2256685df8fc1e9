// Whether names of one storage may be placed as they are. Internal to the room.
#pragma once

#include "layout/layout.h"

namespace lading::checker {

/// Where members of a tie class meet, in any slot, owners may differ; nothing else may. That a cut is even is a
/// promise about the tensor, not a place.
[[nodiscard]] bool same_placement(const layout::Placement& a, const layout::Placement& b, const layout::Mesh& mesh);

}  // namespace lading::checker
