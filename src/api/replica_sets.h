// What a rank holds together with others after a load, for ranks::agree_replicas().
#pragma once

#include <vector>

#include "lading/load.h"
#include "ranks/replicas.h"

namespace lading {

/// With the digests of it. A value that was there before is among them, because replicas that begin with different
/// values stay different; only what the policy's `keep` names may differ (R14, R17).
[[nodiscard]] std::vector<ranks::ReplicaSet> replica_sets(const LoadReport& report);

}  // namespace lading
