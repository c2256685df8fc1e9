// A checkpoint and a model that have no tensor in common: one sentence says more than a line for each name.
#pragma once

#include "mapping/mapping.h"
#include "mapping/resolve.h"
#include "planner/planner.h"

namespace lading::planner {

[[nodiscard]] bool have_nothing_in_common(const PlanInputs& inputs, const mapping::Resolution& names);

/// Whether what is missing and what nobody reads is told by patterns, since there is too much of it to be read by name.
[[nodiscard]] bool is_told_by_patterns(const PlanInputs& inputs, const mapping::Resolution& names);

/// That they have nothing in common, with names of both; and by patterns, if there is much, what each of them has.
[[nodiscard]] Errors tell_nothing_in_common(const PlanInputs& inputs, const mapping::Resolution& names);

}  // namespace lading::planner
