// What stands in the entries: what a subtree of ranks has to say in a step, and the verdict that ends one. Pure.
//
// Entries come from other processes: reading one checks every length, and one that cannot be read is an answer too
// (another version, or a stranger).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lading/error.h"
#include "ranks/rank_set.h"

namespace lading::ranks {

/// Goes up when entries or steps change their meaning.
inline constexpr std::uint64_t kProtocol = 1;

/// The code of the error that an entry or a request calls by this name. Nothing: no code has this name.
[[nodiscard]] std::optional<Code> code_from_word(std::string_view text);

/// A value, and the ranks that have it.
struct Share {
  std::string value;
  RankSet ranks;
};

struct Problem {
  Error error;
  std::string other_code;  ///< a code of a front's own, which no Code stands for; "": error.code

  [[nodiscard]] std::string_view code() const { return other_code.empty() ? word(error.code) : other_code; }
};

/// A problem, and the ranks that have it.
struct Told {
  Problem problem;
  RankSet ranks;
};

struct Field {
  enum class Mode : std::uint8_t {
    kSame,     ///< all ranks must have the same value
    kCollect,  ///< all ranks learn all values
  };
  std::string name;
  std::string value;
  Mode mode = Mode::kSame;
};

struct Shares {
  Field::Mode mode = Field::Mode::kSame;
  std::vector<Share> list;  ///< by first rank
};

/// What some ranks say in a step. Entries of different ranks are merged on their way up, so that their size depends on
/// how many different things are said, not on how many ranks say them.
struct RankReport {
  RankSet ranks;
  std::map<std::string, Shares> fields;
  std::vector<Told> problems;
  std::uint64_t problems_not_listed = 0;
  Exit exit_code = Exit::kOk;  ///< the highest of the ranks that have problems
  bool begun = false;          ///< a rank that has problems has begun to write

  void merge(RankReport other);
};

/// How a step ended; once it stands there, for all ranks.
struct Verdict {
  enum class Kind : std::uint8_t {
    kAgreed,     ///< and on to the next step
    kCommitted,  ///< all ranks are complete: the load is done
    kFailed,
  };
  Kind kind = Kind::kFailed;
  std::string step;
  std::map<std::string, Shares> fields;  ///< of a step that is agreed: those that were collected
  std::vector<Problem> problems;         ///< kFailed: at least one
  std::uint64_t problems_not_listed = 0;
  Exit exit_code = Exit::kOk;
  bool begun = false;
  RankSet at_fault;  ///< kFailed: the ranks that have the problems

  std::string id;      ///< of a failure: eight digits, the same on all ranks that know the verdict
  std::string detail;  ///< what only this rank saw; no part of id and text

  [[nodiscard]] bool failed() const { return kind == Kind::kFailed; }
  /// Whether the ranks at fault refused to begin, rather than failed while they loaded. The same on all ranks.
  [[nodiscard]] bool is_refusal() const;
  /// Of so many ranks, those that print the problems: the lowest that is not at fault, and those at fault, or the first
  /// of them if there are many. All, if no rank is at fault: each of them has come to this verdict by itself.
  [[nodiscard]] RankSet speakers(std::uint64_t size) const;
  /// All problems and the id, one per line.
  [[nodiscard]] std::string text() const;
  /// From the problems.
  void set_id();
  [[nodiscard]] Errors errors() const;
};

[[nodiscard]] std::string encode(const RankReport& report);
[[nodiscard]] std::string encode(const Verdict& verdict);
/// Nothing: it is not an entry of this protocol.
[[nodiscard]] std::optional<RankReport> decode_report(std::string_view bytes);
[[nodiscard]] std::optional<Verdict> decode_verdict(std::string_view bytes);

/// The digest of entries: 16 hexadecimal digits.
[[nodiscard]] std::string short_digest(std::string_view bytes);

}  // namespace lading::ranks
