// Why a tensor is what the plan says: its source, dtype, placement, device and ties, in sentences. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lading/plan_facts.h"
#include "plan/plan.h"

namespace lading::plan {

/// `statement` of this plan; `rank` too, or null to say nothing of any one rank.
std::vector<ExplainedFact> explain(const Plan& plan, const Statement& statement, const RankPlan* rank);

/// Names that a mistyped one may have meant, the likeliest first.
std::vector<std::string> near_names(const Plan& plan, std::string_view name);

}  // namespace lading::plan
