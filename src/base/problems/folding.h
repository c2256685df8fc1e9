// Problems as people read them: many of one kind become one line with a pattern and a count.
//
//   tensor "head.bias": the checkpoint does not have this parameter … [plan, R39]. …
//   96 tensors "blocks.{0..31}.attn.*": the checkpoint has a tensor that … [plan, R39]. …
//
// Pure; safe to print, as Error::text() is. JSON keeps every problem.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/problems/remedies.h"
#include "lading/error.h"

namespace lading {

struct ReadableProblem {
  const Error* error = nullptr;
  std::string_view code;  ///< as it is shown: word(error->code), or the word of a front
  Remedies remedies = Remedies::kUsual;
};

/// One line.
[[nodiscard]] std::string problem_text(const ReadableProblem& problem);

/// Lines in the order of the problems. A line that begins with two spaces belongs to the one before it.
[[nodiscard]] std::vector<std::string> folded(std::span<const ReadableProblem> problems);
[[nodiscard]] std::vector<std::string> folded(const Errors& errors, Remedies remedies = Remedies::kUsual);

}  // namespace lading
