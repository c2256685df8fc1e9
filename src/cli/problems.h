// Problems and notes, for people and for programs.
#pragma once

#include <string>
#include <string_view>

#include "cli/command.h"
#include "lading/error.h"

namespace lading::cli {

/// On standard error, behind the label: one line each, or one for many of a kind.
void tell(const Errors& errors, std::string_view label, Output& output);

/// The same for what is not wrong: a note has a remedy only if it needs one.
void tell_notes(const Errors& notes, Output& output);

/// What `--json` writes where there is nothing else to say: the problems.
std::string refusal_json(std::string_view schema, const Errors& problems);

}  // namespace lading::cli
