// NamePattern in JSON documents.
#pragma once

#include <string>

#include "base/json_fields.h"
#include "base/json_writer.h"
#include "lading/name_pattern.h"

namespace lading {

/// An element of a list: a string is a pattern, {"name": "…"} a name.
NamePattern read_name_pattern(const JsonValue& value, const std::string& path, Errors& errors);
void write_name_pattern(JsonWriter& json, const NamePattern& pattern);

/// In an object that says more: exactly one of the fields "name" and "pattern".
void read_name_fields(JsonFields& fields, NamePattern& out);
void write_name_fields(JsonWriter& json, const NamePattern& pattern);

}  // namespace lading
