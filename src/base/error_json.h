// Errors as JSON: the "problems" and "warnings" of every command's --json (docs/schema/problems.md).
#pragma once

#include "base/json_writer.h"
#include "base/problems/remedies.h"
#include "lading/error.h"

namespace lading {

/// Writes `"key": [ … ]` into the object that is open.
void write_errors(JsonWriter& json, std::string_view key, const Errors& errors, Remedies remedies = Remedies::kUsual);

}  // namespace lading
