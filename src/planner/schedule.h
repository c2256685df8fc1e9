// Schedule: a rank's transfers as the reads that the executor runs. Pure.
//
// A transfer whose bytes one read cannot hold is split first, so that each transfer belongs to one read. Then reads
// that are small and near each other become one, and so do those of equal bytes.
#pragma once

#include "planner/plan_types.h"

namespace lading::planner {

/// Sets `reads` and `read_bytes` of a rank whose destinations are worked out. May split transfers.
void schedule_reads(const Plan& plan, RankPlan& rank);

}  // namespace lading::planner
