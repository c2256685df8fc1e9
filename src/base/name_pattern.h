// Which names a document speaks of: one name exactly, or all that a pattern matches.
//
// A model's names are data, and any character may be in them: "w*" is a tensor's name like any other. So whoever writes
// a document for a given model (the Python front, a strategy) names tensors exactly; people may write patterns.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "base/json_fields.h"
#include "base/json_writer.h"

namespace lading {

struct NamePattern {
  std::string text;
  bool is_exact = false;  ///< true: `text` is a name, and "*" stands for itself

  NamePattern() = default;
  // As people write them.
  NamePattern(std::string pattern) : text(std::move(pattern)) {}  // NOLINT(google-explicit-constructor)
  NamePattern(const char* pattern) : text(pattern) {}             // NOLINT(google-explicit-constructor)
  static NamePattern exact(std::string_view name);

  /// Whether no more than one name matches: then it is `text`.
  [[nodiscard]] bool is_one_name() const { return is_exact || text.find('*') == std::string::npos; }
  /// "*" of a pattern matches any run of characters, dots included. Linear time.
  [[nodiscard]] bool matches(std::string_view name) const;

  friend bool operator==(const NamePattern&, const NamePattern&) = default;
};

/// An element of a list: a string is a pattern, {"name": "…"} a name.
NamePattern read_name_pattern(const JsonValue& value, const std::string& path, Errors& errors);
void write_name_pattern(JsonWriter& json, const NamePattern& pattern);

/// In an object that says more: exactly one of the fields "name" and "pattern".
void read_name_fields(JsonFields& fields, NamePattern& out);
void write_name_fields(JsonWriter& json, const NamePattern& pattern);

}  // namespace lading
