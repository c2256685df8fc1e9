// `lading inspect`
#pragma once

#include <CLI/CLI.hpp>

#include "cli/command.h"
#include "cli/inspect_output.h"
#include "lading/inspect.h"

namespace lading::cli {

struct InspectArguments {
  CheckpointRef checkpoint;
  HashCheck hash = HashCheck::kSkip;
  ListTensors list = ListTensors::kNo;
  bool json = false;
};

/// How to look at a checkpoint: what every command with one has.
void add_checkpoint_options(CLI::App& command, CheckpointRef& checkpoint);

CLI::App* add_inspect(CLI::App& app, InspectArguments& arguments);
Exit run_inspect(const InspectArguments& arguments, Output& output);

}  // namespace lading::cli
