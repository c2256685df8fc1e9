// The memory of a plan's destinations, in the words of the API.
#pragma once

#include <cstdint>
#include <vector>

#include "lading/load.h"
#include "plan/plan.h"

namespace lading {

/// Of these places in Plan::ranks; empty: of all ranks.
[[nodiscard]] std::vector<DestinationInfo> describe_destinations(const plan::Plan& plan,
                                                                 const std::vector<std::uint32_t>& ranks);

}  // namespace lading
