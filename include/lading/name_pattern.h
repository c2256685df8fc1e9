// NamePattern: one exact name, or a pattern with "*". Any character may occur in a model's names, so generated rules
// use exact names; people may write patterns.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "lading/export.h"

namespace lading {

struct NamePattern {
  std::string text;
  bool is_exact = false;  ///< true: `text` is a name, and "*" stands for itself

  NamePattern() = default;
  // As people write them.
  NamePattern(std::string pattern) : text(std::move(pattern)) {}  // NOLINT(google-explicit-constructor)
  NamePattern(const char* pattern) : text(pattern) {}             // NOLINT(google-explicit-constructor)
  LADING_API static NamePattern exact(std::string_view name);

  /// Whether no more than one name matches: then it is `text`.
  [[nodiscard]] bool is_one_name() const { return is_exact || text.find('*') == std::string::npos; }
  /// "*" of a pattern matches any run of characters, dots included. Linear time.
  [[nodiscard]] LADING_API bool matches(std::string_view name) const;

  friend bool operator==(const NamePattern&, const NamePattern&) = default;
};

}  // namespace lading
