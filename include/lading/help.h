// What an error code, a rule, an exit code or a word of a policy means, and what to do: `lading::help("R45")`.
//
// The texts are sections of docs/contract.md, docs/error-codes.md, docs/exit-codes.md and docs/policy-words.md, which
// the build takes into the library: no file and no network is needed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lading/export.h"
#include "lading/result.h"

namespace lading {

enum class TopicKind : std::uint8_t {
  kErrorCode,   ///< `header_overlap`
  kRule,        ///< `R45`, `S1`
  kExitCode,    ///< `exit 3`
  kPolicyWord,  ///< `promote`
};

/// "error code", "rule", "exit code", "policy word"
[[nodiscard]] LADING_API std::string_view word(TopicKind kind);

/// A labelled paragraph: "What to do" and what to do.
struct HelpPart {
  std::string label;
  std::string text;
};

struct HelpTopic {
  std::string name;
  TopicKind kind = TopicKind::kErrorCode;
  std::string group;    ///< the heading above it: "Dtypes"
  std::string meaning;  ///< one or more sentences
  std::vector<HelpPart> parts;
  std::string page;  ///< "docs/contract.md#r45"

  /// The first sentence of `meaning`.
  [[nodiscard]] LADING_API std::string summary() const;
  /// Everything, in lines of at most 80 characters.
  [[nodiscard]] LADING_API std::string text() const;
};

/// Every topic, in the order of the pages.
[[nodiscard]] LADING_API std::vector<HelpTopic> help_topics();

/// The topics of this name, at least one: a word can be an error code and an argument. Case does not matter, and
/// neither do brackets and quotes around the name; an exit code may come as "3" or "exit 3". Fails with Code::kUsage
/// and near names.
[[nodiscard]] LADING_API Result<std::vector<HelpTopic>> help(std::string_view topic);

/// Their texts, one after the other.
[[nodiscard]] LADING_API std::string help_text(const std::vector<HelpTopic>& topics);

/// The names of all topics by group, in lines of at most 80 characters.
[[nodiscard]] LADING_API std::string help_overview();

}  // namespace lading
