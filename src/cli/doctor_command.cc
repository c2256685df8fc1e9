#include "cli/doctor_command.h"

#include "cli/doctor_output.h"
#include "cli/problems.h"
#include "cli/style.h"

namespace lading::cli {

CLI::App* add_doctor(CLI::App& app, DoctorArguments& arguments) {
  CLI::App* command =
      app.add_subcommand("doctor", "Check what this machine offers for loading, what it lacks, and what that costs");
  command
      ->add_option("PATH", arguments.request.path,
                   "A checkpoint, or a directory on the file system of your checkpoints")
      ->capture_default_str();
  command->add_flag("--json", arguments.json, "Write JSON to standard output (docs/schema/doctor.md)");
  return command;
}

Exit run_doctor(const DoctorArguments& arguments, Output& output) {
  const auto findings = examine_machine(arguments.request);
  if (!findings) {
    if (arguments.json) output.out += doctor_failure_json(findings.error());
    tell(findings.error(), Style(output.err_colour).red("refused:"), output);
    return exit_code(findings.error().code);
  }
  output.out += arguments.json ? doctor_json(arguments.request.path, *findings)
                               : doctor_text(arguments.request.path, *findings, output.out_colour);
  return Exit::kOk;
}

}  // namespace lading::cli
