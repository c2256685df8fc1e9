// The version of lading.
#pragma once

#include "lading/export.h"

namespace lading {

/// "0.1.0"
[[nodiscard]] LADING_API const char* version();

}  // namespace lading
