// A user's regular expression over names. RE2: linear in the name, whatever the pattern.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lading/result.h"

namespace re2 {
class RE2;
}

namespace lading::mapping {

class Pattern {
 public:
  static constexpr std::size_t kMaxBytes = 4096;

  static Result<Pattern> compile(std::string_view text);

  /// Steps of the compiled program, which takes some 50 bytes for each: "(a{30}){30}" has a thousand.
  [[nodiscard]] std::uint64_t steps() const;
  /// What is wrong with a replacement, as a sentence: a group that the pattern does not have, a stray backslash.
  [[nodiscard]] std::optional<std::string> problem_with(std::string_view replacement) const;
  /// What every name that matches begins and ends with; "" where that is not plain to see. To leave out others.
  [[nodiscard]] const std::string& prefix() const { return prefix_; }
  [[nodiscard]] const std::string& suffix() const { return suffix_; }
  /// The whole name must match.
  [[nodiscard]] bool matches(std::string_view name) const;
  /// The replacement with \1 … \9 filled in, if the whole name matches.
  [[nodiscard]] std::optional<std::string> rewrite(std::string_view name, std::string_view replacement) const;

 private:
  explicit Pattern(std::shared_ptr<const re2::RE2> pattern) : pattern_(std::move(pattern)) {}
  std::shared_ptr<const re2::RE2> pattern_;
  std::string prefix_;
  std::string suffix_;
};

}  // namespace lading::mapping
