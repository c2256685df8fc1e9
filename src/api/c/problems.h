// Problems as JSON, of the engine's and of a front's own codes.
#pragma once

#include <string>

#include "base/json_fields.h"
#include "base/json_writer.h"
#include "ranks/entry.h"

namespace lading::c_api {

/// Of docs/schema/problems.md.
[[nodiscard]] ranks::Problem read_problem(const JsonValue& value, const std::string& path, Errors& errors);
void write_problem(JsonWriter& json, const ranks::Problem& problem);

}  // namespace lading::c_api
