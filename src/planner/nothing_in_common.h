// A checkpoint and a model that have no tensor in common: one sentence says more than a line for each name.
#pragma once

#include "mapping/mapping.h"
#include "mapping/resolve.h"
#include "planner/planner.h"

namespace lading::planner {

[[nodiscard]] bool have_nothing_in_common(const PlanInputs& inputs, const mapping::Resolution& names);

/// That they have nothing in common, with names of both. The names that are missing or unexpected are reported as
/// always, and folded where they are shown.
[[nodiscard]] Errors tell_nothing_in_common(const PlanInputs& inputs, const mapping::Resolution& names);

}  // namespace lading::planner
