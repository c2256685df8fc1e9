// The scales that a rank needs. Internal to the room.
#pragma once

#include <cstdint>

#include "planner/plan_types.h"

namespace lading::planner {

/// Sets `scale_reads` of a rank whose transfers are worked out, and adds them to `read_bytes`.
void add_scale_reads(const Plan& plan, RankPlan& rank);

/// Cuts the reads of a rank into batches, where all its scales together are more than `batch_bytes`: as many reads in
/// each as have scales of that many bytes, but one at least.
void cut_into_batches(const Plan& plan, std::uint64_t batch_bytes, RankPlan& rank);

}  // namespace lading::planner
