// Strided copies and casts in host memory.
#pragma once

#include "device/device.h"

namespace lading::device {

/// Carries a move out, source and target both in host memory. `from` and `to` must be equal or have a cast.
void move_on_host(const Move& move);

/// Writes a constant to host memory.
void fill_on_host(const Fill& fill);

}  // namespace lading::device
