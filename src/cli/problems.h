// Problems and notes, for people.
#pragma once

#include <string_view>

#include "cli/command.h"
#include "lading/error.h"

namespace lading::cli {

/// One line each on standard error, behind the label.
void tell(const Errors& errors, std::string_view label, Output& output);

}  // namespace lading::cli
