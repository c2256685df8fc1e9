// What a load did, for people and for programs.
#pragma once

#include <string>

#include "cli/command.h"
#include "lading/load.h"

namespace lading::cli {

std::string load_text(const Report& report, Colour colour);

/// docs/schema/load.md
std::string load_json(const Report& report);
std::string load_failure_json(const LoadFailure& failure);

}  // namespace lading::cli
