// The scales that a rank needs. Internal to the room.
#pragma once

#include "planner/plan_types.h"

namespace lading::planner {

/// Sets `scale_reads` of a rank whose transfers are worked out, and adds them to `read_bytes`.
void add_scale_reads(const Plan& plan, RankPlan& rank);

}  // namespace lading::planner
