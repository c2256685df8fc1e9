// The plan of a save, for people.
#pragma once

#include <string>

#include "cli/command.h"
#include "lading/save.h"

namespace lading::cli {

std::string save_plan_text(const SavePlanReport& report, Colour colour);

}  // namespace lading::cli
