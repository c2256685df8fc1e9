#include "cli/command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <sstream>

#include "base/text.h"
#include "cli/convert/convert_command.h"
#include "cli/diff_command.h"
#include "cli/doctor_command.h"
#include "cli/help/help_command.h"
#include "cli/inspect_command.h"
#include "cli/load_command.h"
#include "cli/plan_command.h"
#include "cli/problems.h"
#include "cli/style.h"
#include "cli/verify_command.h"
#include "lading/sample.h"
#include "lading/version.h"

namespace lading::cli {
namespace {

struct DemoArguments {
  std::string directory = "lading-demo";
};

// What CLI11 says may hold the user's arguments, and a shell's "*" may have put anything there.
std::string escape_lines(const std::string& text) {
  std::istringstream lines(text);
  std::string out;
  for (std::string line; std::getline(lines, line);) out += escape(line) + "\n";
  return out;
}

// Other installations have only this program, and people look for the command here.
Exit tell_where_skeleton_is(Output& output) {
  const Error error = Error(Code::kUsage, "lading skeleton needs the Python package, because it builds the model")
                          .try_this(
                              "Run pip install '.[transformers]' in lading's repository, then python -m lading "
                              "skeleton MODEL -o FILE.");
  tell(error, Style(output.err_colour).red("refused:"), output);
  return exit_code(error.code);
}

Exit run_demo(const DemoArguments& arguments, Output& output) {
  const Style style(output.err_colour);
  const auto sample = write_sample_checkpoint(arguments.directory);
  if (!sample) {
    tell(sample.error(), style.red("failed:"), output);
    return exit_code(sample.error().front().code);
  }
  output.err += fmt::format("wrote a sample checkpoint of two shards to {}\n\n", quote(arguments.directory));
  InspectArguments inspect_arguments;
  inspect_arguments.checkpoint.path = arguments.directory;
  if (const Exit code = run_inspect(inspect_arguments, output); code != Exit::kOk) return code;

  output.out += "\n";
  LoadArguments load_arguments;
  load_arguments.ledger = arguments.directory + "/ledger.json";
  PlanInputs& inputs = load_arguments.inputs;
  inputs.checkpoint.path = arguments.directory;
  inputs.layout.mesh = "dp=4,tp=2";
  inputs.layout.strategy = "fsdp2+tp";
  if (const Exit code = run_load(load_arguments, output); code != Exit::kOk) return code;

  output.out += "\n";
  VerifyArguments verify_arguments;
  verify_arguments.request.checkpoint.path = arguments.directory;
  verify_arguments.ledger = *load_arguments.ledger;
  return run_verify(verify_arguments, output);
}

Exit run_command(const std::vector<std::string>& arguments, Output& output) {
  CLI::App app(
      "lading loads checkpoints into sharded models, and proves that every tensor on every rank has the right bytes.",
      "lading");
  app.require_subcommand(1);
  app.set_version_flag("--version", fmt::format("lading {}", version()));
  InspectArguments inspect_arguments;
  PlanArguments plan_arguments;
  LoadArguments load_arguments;
  VerifyArguments verify_arguments;
  DiffArguments diff_arguments;
  ConvertArguments convert_arguments;
  DoctorArguments doctor_arguments;
  HelpArguments help_arguments;
  DemoArguments demo_arguments;
  add_inspect(app, inspect_arguments);
  const CLI::App* plan = add_plan(app, plan_arguments);
  const CLI::App* load = add_load(app, load_arguments);
  const CLI::App* verify = add_verify(app, verify_arguments);
  const CLI::App* diff = add_diff(app, diff_arguments);
  const CLI::App* convert = add_convert(app, convert_arguments);
  const CLI::App* doctor = add_doctor(app, doctor_arguments);
  const CLI::App* help = add_help(app, help_arguments);
  CLI::App* demo =
      app.add_subcommand("demo", "Write a small sample checkpoint, inspect it, load it as eight ranks and verify it");
  demo->add_option("--dir", demo_arguments.directory, "Directory of the sample checkpoint")->capture_default_str();

  CLI::App* skeleton = app.add_subcommand("skeleton")->group("")->prefix_command();

  // CLI11 takes them in reverse.
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::ParseError& error) {
    std::ostringstream out;
    std::ostringstream err;
    const bool asked = app.exit(error, out, err) == 0;
    output.out += out.str();
    output.err += escape_lines(err.str());
    return asked ? Exit::kOk : exit_code(Code::kUsage);
  }
  if (skeleton->parsed()) return tell_where_skeleton_is(output);
  if (demo->parsed()) return run_demo(demo_arguments, output);
  if (load->parsed()) return run_load(load_arguments, output);
  if (help->parsed()) {
    for (const CLI::App* one : app.get_subcommands([](const CLI::App*) { return true; }))
      help_arguments.commands.push_back(one->get_name());
    return run_help(help_arguments, output);
  }
  if (convert->parsed()) return run_convert(convert_arguments, output);
  if (doctor->parsed()) return run_doctor(doctor_arguments, output);
  if (verify->parsed()) return run_verify(verify_arguments, output);
  if (diff->parsed()) return run_diff(diff_arguments, output);
  return plan->parsed() ? run_plan(plan_arguments, output) : run_inspect(inspect_arguments, output);
}

}  // namespace

Exit run(const std::vector<std::string>& arguments, Output& output) {
  const Exit code = run_command(arguments, output);
  tell_where_help_is(output);
  return code;
}

}  // namespace lading::cli
