// Which casts the executor can do. The checker's own reading of docs/how-it-works/dtype-contract.md. Internal to the
// room.
#pragma once

#include "lading/dtype.h"

namespace lading::checker {

/// Whether elements are stored as they are, or can be cast in one correctly rounded step (R23, R24).
[[nodiscard]] bool cast_is_sound(DType from, DType to);

/// Whether elements of the dtype are multiplied by scales without being codes: 8-bit floats.
[[nodiscard]] bool is_eight_bit_float(DType dtype);

/// Whether the product of a payload or a code and such a scale is exact in F64, and F64 can be cast to `to` (R48).
[[nodiscard]] bool scaling_is_sound(DType scales, DType to);

/// Whether such a product may be rounded to this dtype before it is cast.
[[nodiscard]] bool is_rounding_sound(DType product);

}  // namespace lading::checker
