// `lading plan`
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/layout_words.h"
#include "cli/command.h"
#include "cli/inspect_output.h"
#include "lading/plan.h"

namespace lading::cli {

/// What plan and load are asked alike: the checkpoint, the documents, and the layout in words.
struct PlanInputs {
  CheckpointRef checkpoint;
  Start start = Start::kFromCheckpoint;
  std::optional<Document> skeleton;
  std::optional<Document> mapping;
  std::vector<std::string> adapters;  ///< PATH, or PATH=NAMES
  std::optional<Document> policy;
  LayoutWords layout;
};

struct PlanArguments {
  PlanInputs inputs;
  std::optional<std::vector<std::uint64_t>> ranks = {{0}};  ///< nothing: all
  ListTensors list = ListTensors::kNo;
  std::optional<std::string> explain;
  std::optional<std::string> diff;
  bool save = false;
  bool json = false;
};

CLI::Option* add_checkpoint(CLI::App& command, CheckpointRef& checkpoint);
void add_adapters(CLI::App& command, std::vector<std::string>& adapters, const char* help);
void add_plan_inputs(CLI::App& command, PlanInputs& inputs);

/// With the mapping and the policy beside the skeleton, where none is named; says so.
Result<PlanRequest, Errors> request_of(const PlanInputs& inputs, Output& output);

CLI::App* add_plan(CLI::App& app, PlanArguments& arguments);
Exit run_plan(const PlanArguments& arguments, Output& output);

}  // namespace lading::cli
