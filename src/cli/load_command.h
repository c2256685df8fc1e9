// `lading load`
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "api/mpi_group.h"
#include "cli/command.h"
#include "lading/load.h"

namespace lading::cli {

struct LoadArguments {
  Request request;
  std::optional<std::string> ledger;
  std::optional<std::string> values;  ///< nothing: the file beside the skeleton, if it is there
  bool json = false;
  bool alone = false;
  Exchange exchange = Exchange::kNever;
};

CLI::App* add_load(CLI::App& app, LoadArguments& arguments);
Exit run_load(const LoadArguments& arguments, Output& output);

}  // namespace lading::cli
