// What the planner asks of its inputs once sources are chosen: that no key is left over without a word (R38,
// R39), that the user's lists match something (R43), that tied tensors lie together (R52).
#pragma once

#include <vector>

#include "mapping/mapping.h"
#include "plan/plan.h"
#include "plan/planner.h"

namespace lading::plan {

/// Only these are ever in a state dict (R46).
[[nodiscard]] bool can_be_in_a_file(model::Kind kind);

/// Classifies every key that no tensor reads, into the plan's lists, its warnings, or the errors.
Errors check_keys(const PlanInputs& inputs, const mapping::Resolved& resolved, Plan& plan);

/// Patterns of the policy that match no tensor, or no key where keys are meant.
Errors check_name_lists(const PlanInputs& inputs, Plan& plan);

/// Where tensors are put: offloaded buffers (R36), and shared buffers of unlike members (R27).
Errors check_placements(const PlanInputs& inputs, const Plan& plan);

/// The members of one tie class.
Errors check_tie_placements(const std::vector<const Statement*>& members);

}  // namespace lading::plan
