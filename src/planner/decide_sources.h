// The planner's sources: each tensor, or tie class, gets one.
#pragma once

#include "mapping/mapping.h"
#include "mapping/resolve.h"
#include "planner/decide.h"
#include "planner/planner.h"

namespace lading::planner {

/// Sets the source of every statement, by class_of; adds the plan's files and sources, the keys that the user's
/// word hides, and warnings. Statements that it can give none are refused; so are those tied to one that is.
/// Expressions are moved from `names` to the statements.
Errors decide_sources(const PlanInputs& inputs, mapping::Resolution& names, Decisions& decisions);

}  // namespace lading::planner
