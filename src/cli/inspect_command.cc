#include "cli/inspect_command.h"

#include "cli/problems.h"
#include "cli/style.h"

namespace lading::cli {

void add_checkpoint_options(CLI::App& command, CheckpointRef& checkpoint) {
  command.add_option("--root", checkpoint.root, "Follow links anywhere beneath this directory");
  command.add_option("--revision", checkpoint.revision, "Branch, tag or commit of a cached repository");
  command.add_flag_callback(
      "--allow-trailing-bytes", [&] { checkpoint.trailing_bytes = TrailingBytesPolicy::kAllow; },
      "Accept bytes behind the last tensor");
}

CLI::App* add_inspect(CLI::App& app, InspectArguments& arguments) {
  CLI::App* command = app.add_subcommand("inspect", "Show what a checkpoint holds, or every reason to refuse it");
  command
      ->add_option("PATH", arguments.checkpoint.path,
                   "A .safetensors file, an index, a directory, a Hugging Face cache folder, or org/name in that cache")
      ->required();
  command->add_flag_callback(
      "--tensors", [&] { arguments.list = ListTensors::kYes; }, "List every tensor");
  command->add_flag("--json", arguments.json, "Write JSON to standard output (docs/schema/inspect.md)");
  command->add_flag_callback(
      "--verify-hash", [&] { arguments.hash = HashCheck::kVerify; },
      "Compare files in a Hugging Face cache with the hashes that name them");
  add_checkpoint_options(*command, arguments.checkpoint);
  return command;
}

Exit run_inspect(const InspectArguments& arguments, Output& output) {
  const Style style(output.err_colour);
  const auto inspection = inspect(arguments.checkpoint, arguments.hash);
  if (!inspection) {
    const Errors& problems = inspection.error();
    const Exit code = exit_code(problems.front().code);
    if (arguments.json) output.out += answer_of({"inspect", Stage::kCheckpoint, false, code}, problems);
    tell(problems, style.red("refused:"), output);
    return code;
  }
  tell_notes(inspection->warnings, output);
  output.out += arguments.json ? answer_of(*inspection, arguments.list)
                               : inspection_text(*inspection, arguments.list, output.out_colour);
  return Exit::kOk;
}

}  // namespace lading::cli
