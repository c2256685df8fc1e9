// `lading plan`
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "cli/command.h"
#include "cli/inspect_output.h"
#include "lading/plan.h"

namespace lading::cli {

struct PlanArguments {
  PlanRequest request;
  TensorList list = TensorList::kSummary;
  std::optional<std::string> explain;
  std::optional<std::string> diff;
  bool json = false;
};

/// The checkpoint, the documents and the strategy: what plan and load have in common.
void add_plan_inputs(CLI::App& command, PlanRequest& request);

CLI::App* add_plan(CLI::App& app, PlanArguments& arguments);
Exit run_plan(const PlanArguments& arguments, Output& output);

}  // namespace lading::cli
