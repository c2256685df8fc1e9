// For tests: the command, run without a process.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace lading::cli {

struct Ran {
  int code = 0;
  std::string out;
  std::string err;
};

inline Ran run_with(const std::vector<std::string>& arguments) {
  Output output;
  const int code = static_cast<int>(run(arguments, output));
  return {code, output.out, output.err};
}

}  // namespace lading::cli
