// Casts between floating element types, compiled once for each instruction set and picked at run time.
#pragma once

#include "device/cast.h"

namespace lading::device {

/// Null if one of the two is not in kFormats, or if they are the same.
[[nodiscard]] Cast find_float_cast(DType from, DType to);

}  // namespace lading::device
