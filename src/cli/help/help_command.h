// `lading help`
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/command.h"

namespace lading::cli {

struct HelpArguments {
  std::vector<std::string> topics;
  std::vector<std::string> commands;  ///< that have a --help of their own
  bool json = false;
};

CLI::App* add_help(CLI::App& app, HelpArguments& arguments);
Exit run_help(const HelpArguments& arguments, Output& output);

}  // namespace lading::cli
