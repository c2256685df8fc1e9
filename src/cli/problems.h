// Problems and notes, for people and for programs.
#pragma once

#include <string>
#include <string_view>

#include "cli/command.h"
#include "lading/error.h"

namespace lading::cli {

/// One line each on standard error, behind the label. What explains the first of them is kept in output.topics.
void tell(const Errors& errors, std::string_view label, Output& output);
/// The same for notes, which need no explanation.
void tell_notes(const Errors& notes, Output& output);

/// Where there were problems: how to look up the first of them. Once, at the end of a command.
void tell_where_help_is(Output& output);

/// What `--json` writes where there is nothing else to say: the problems.
std::string refusal_json(std::string_view schema, const Errors& problems);

}  // namespace lading::cli
