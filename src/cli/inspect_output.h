// An inspection, for people and for programs.
#pragma once

#include <string>

#include "cli/command.h"
#include "lading/inspect.h"

namespace lading::cli {

enum class TensorList { kSummary, kAll };

std::string inspection_text(const Inspection& inspection, TensorList list, Colour colour);
/// docs/schema/inspect.md
std::string inspection_json(const Inspection& inspection, TensorList list);

}  // namespace lading::cli
