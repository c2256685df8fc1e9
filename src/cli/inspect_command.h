// `lading inspect`
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/command.h"
#include "cli/inspect_output.h"
#include "lading/inspect.h"

namespace lading::cli {

struct InspectArguments {
  std::string path;
  InspectOptions options;
  TensorList list = TensorList::kSummary;
  bool json = false;
};

CLI::App* add_inspect(CLI::App& app, InspectArguments& arguments);
Exit run_inspect(const InspectArguments& arguments, Output& output);

}  // namespace lading::cli
