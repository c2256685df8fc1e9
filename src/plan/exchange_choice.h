// Whether the ranks of a plan exchange bytes. Pure.
#pragma once

#include "lading/exchange.h"
#include "plan/plan.h"

namespace lading::plan {

/// `facts` has a node for each rank of the mesh, and each list of speeds is empty or as long.
[[nodiscard]] ExchangeChoice choose_exchange(const Plan& plan, const ExchangeFacts& facts);

}  // namespace lading::plan
