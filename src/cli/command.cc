#include "cli/command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <sstream>

#include "base/text.h"
#include "cli/inspect_command.h"
#include "cli/plan_command.h"
#include "cli/problems.h"
#include "cli/style.h"
#include "lading/sample.h"

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

int run_demo(const DemoArguments& arguments, Output& output) {
  const Style style(output.err_colour);
  const auto sample = write_sample_checkpoint(arguments.directory);
  if (!sample) {
    tell(sample.error(), style.red("failed:"), output);
    return exit_code(sample.error().front().code);
  }
  output.err += fmt::format("wrote a sample checkpoint of two shards to {}\n\n", quote(arguments.directory));
  InspectArguments inspect_arguments;
  inspect_arguments.path = arguments.directory;
  if (const int code = run_inspect(inspect_arguments, output); code != 0) return code;

  output.out += "\n";
  PlanArguments plan_arguments;
  plan_arguments.request.checkpoint = arguments.directory;
  plan_arguments.request.mesh = "dp=4,tp=2";
  plan_arguments.request.strategy = "fsdp2+tp";
  plan_arguments.request.ranks.reset();
  return run_plan(plan_arguments, output);
}

}  // namespace

int run(const std::vector<std::string>& arguments, Output& output) {
  CLI::App app("lading fills every parameter and every buffer of a model, on every rank, from checkpoint files.",
               "lading");
  app.require_subcommand(1);
  app.set_version_flag("--version", fmt::format("lading {}", version()));
  InspectArguments inspect_arguments;
  PlanArguments plan_arguments;
  DemoArguments demo_arguments;
  add_inspect(app, inspect_arguments);
  const CLI::App* plan = add_plan(app, plan_arguments);
  CLI::App* demo =
      app.add_subcommand("demo", "Write a small sample checkpoint, inspect it and plan it for eight ranks");
  demo->add_option("--dir", demo_arguments.directory, "Where to write it")->capture_default_str();

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
    return asked ? 0 : exit_code(Code::kUsage);
  }
  if (demo->parsed()) return run_demo(demo_arguments, output);
  return plan->parsed() ? run_plan(plan_arguments, output) : run_inspect(inspect_arguments, output);
}

}  // namespace lading::cli
