// An inspection, for people.
#pragma once

#include <string>

#include "api/answers.h"
#include "cli/command.h"
#include "lading/inspect.h"

namespace lading::cli {

std::string inspection_text(const Inspection& inspection, ListTensors list, Colour colour);

}  // namespace lading::cli
