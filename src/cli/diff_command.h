// `lading diff`
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/command.h"

namespace lading::cli {

struct DiffArguments {
  std::string first;  ///< a ledger, or a directory of one load's ledgers
  std::string second;
  bool json = false;
};

CLI::App* add_diff(CLI::App& app, DiffArguments& arguments);
Exit run_diff(const DiffArguments& arguments, Output& output);

}  // namespace lading::cli
