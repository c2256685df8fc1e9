// Which casts the executor can do. The checker's own reading of docs/how-it-works/dtype-contract.md. Internal to the
// room.
#pragma once

#include "lading/dtype.h"

namespace lading::checker {

/// Whether elements are stored as they are, or can be cast in one correctly rounded step (R23, R24).
[[nodiscard]] bool cast_is_sound(DType from, DType to);

}  // namespace lading::checker
