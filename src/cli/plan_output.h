// A plan, an explanation and a difference, for people and for programs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"
#include "cli/inspect_output.h"
#include "lading/plan.h"

namespace lading::cli {

std::string plan_text(const PlanReport& report, ListTensors list, Colour colour);
std::string explanation_text(const std::vector<ExplainedFact>& facts, Colour colour);
std::string difference_text(const PlanDifference& difference, Colour colour);

/// docs/schema/plan.md
std::string explanation_json(const PlanReport& report, std::string_view tensor,
                             const std::vector<ExplainedFact>& facts);
std::string difference_json(const PlanDifference& difference);

}  // namespace lading::cli
