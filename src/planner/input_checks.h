// What the planner asks of its inputs once sources are chosen: that no key is left over without a word (R38,
// R39), that the user's lists match something (R43), that tied tensors lie together (R52), that computed ones
// lie where their inputs are (R66).
#pragma once

#include <set>
#include <string_view>
#include <vector>

#include "mapping/mapping.h"
#include "mapping/resolve.h"
#include "planner/decide.h"
#include "planner/plan_types.h"
#include "planner/planner.h"

namespace lading::planner {

/// Only these are ever in a state dict (R46).
[[nodiscard]] bool can_be_in_a_file(model::Kind kind);
/// For messages.
[[nodiscard]] std::string_view describe(model::Kind kind);

/// Classifies every key that no tensor reads, into the plan's lists, its warnings, or the errors. Names that a
/// problem of the mapping may explain are not told, nor `told`, which another error is about.
Errors check_keys(const PlanInputs& inputs, const mapping::Resolution& names, const std::set<std::string_view>& told,
                  Plan& plan);

/// Patterns of the policy that match no tensor, or no key where keys are meant.
Errors check_name_lists(const PlanInputs& inputs, Plan& plan);

/// Where tensors are put: offloaded buffers (R36), shared buffers of unlike members (R27) or overlapping ones (R11).
Errors check_placements(const PlanInputs& inputs, const Decisions& decisions);

/// The members of one tie class: alike wherever a rank has two of them, slot by slot. One error for the class.
Errors check_tie_placements(const std::vector<const Statement*>& members, const layout::Mesh& mesh);

/// Calls whose inputs some rank that needs the result has not, because another stage has them.
Errors check_call_places(const PlanInputs& inputs, const Decisions& decisions);

}  // namespace lading::planner
