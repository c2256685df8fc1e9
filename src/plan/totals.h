// What a rank plan needs of each device.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "plan/plan.h"

namespace lading::plan {

/// Bytes of buffers by device, padding included. A buffer that tensors share counts once.
[[nodiscard]] std::map<std::string, std::uint64_t> device_bytes(const RankPlan& rank);

}  // namespace lading::plan
