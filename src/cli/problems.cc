#include "cli/problems.h"

#include <fmt/format.h>

#include "base/text.h"

namespace lading::cli {

void tell(const Errors& errors, std::string_view label, Output& output) {
  for (const Error& error : errors) output.err += fmt::format("{} {}\n", label, error.text());
  if (errors.not_listed() > 0) {
    output.err += fmt::format("{} and {} more like these\n", label, with_commas(errors.not_listed()));
  }
}

}  // namespace lading::cli
