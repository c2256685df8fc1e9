// Which ties hold: all of them, or under `ties = untie` those that there is nothing to untie for (R50).
#pragma once

#include "mapping/mapping.h"
#include "mapping/resolve.h"
#include "planner/decide.h"
#include "planner/planner.h"

namespace lading::planner {

/// Sets class_of and speakers. Values cannot be compared yet, so a class is taken apart if two members have a
/// source of their own, a key or the user's word; members without one stay with the first that has.
Errors group_ties(const PlanInputs& inputs, const mapping::Resolution& names, Decisions& decisions);

}  // namespace lading::planner
