// `lading load`
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/plan_command.h"
#include "lading/load.h"
#include "lading/mpi.h"

namespace lading::cli {

struct LoadArguments {
  PlanInputs inputs;
  std::optional<std::vector<std::uint64_t>> ranks;  ///< nothing: all
  LoadRequest request;                              ///< but for its plan
  std::optional<std::string> ledger;
  std::optional<std::string> values;  ///< nothing: the file beside the skeleton, if it is there
  bool json = false;
  bool alone = false;
  Exchange exchange = Exchange::kNever;
};

CLI::App* add_load(CLI::App& app, LoadArguments& arguments);
Exit run_load(const LoadArguments& arguments, Output& output);

}  // namespace lading::cli
