#include "cli/command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <sstream>

#include "base/text.h"
#include "cli/inspect_output.h"
#include "cli/style.h"
#include "lading/inspect.h"
#include "lading/sample.h"

namespace lading::cli {
namespace {

struct InspectArguments {
  std::string path;
  InspectOptions options;
  TensorList list = TensorList::kSummary;
  bool json = false;
};

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

void tell(const Errors& errors, std::string_view label, Output& output) {
  for (const Error& error : errors) output.err += fmt::format("{} {}\n", label, error.text());
  if (errors.not_listed() > 0)
    output.err += fmt::format("{} and {} more of this checkpoint\n", label, with_commas(errors.not_listed()));
}

int run_inspect(const InspectArguments& arguments, Output& output) {
  const Style style(output.err_colour);
  const auto inspection = inspect(arguments.path, arguments.options);
  if (!inspection) {
    const Errors& problems = inspection.error();
    if (arguments.json) output.out += refusal_json(problems);
    tell(problems, style.red("refused:"), output);
    return exit_code(problems.front().code);
  }
  tell(inspection->warnings, style.yellow("note:"), output);
  output.out += arguments.json ? inspection_json(*inspection, arguments.list)
                               : inspection_text(*inspection, arguments.list, output.out_colour);
  return 0;
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
  return run_inspect(inspect_arguments, output);
}

void add_inspect(CLI::App& app, InspectArguments& arguments) {
  CLI::App* command = app.add_subcommand("inspect", "Show what a checkpoint holds, or every reason to refuse it");
  command
      ->add_option("PATH", arguments.path,
                   "A .safetensors file, an index, a directory, a Hugging Face cache folder, or org/name in that cache")
      ->required();
  command->add_flag_callback(
      "--tensors", [&] { arguments.list = TensorList::kAll; }, "List every tensor");
  command->add_flag("--json", arguments.json, "Write JSON to standard output (docs/schema/inspect.md)");
  command->add_flag_callback(
      "--verify-hash", [&] { arguments.options.hash = HashCheck::kVerify; },
      "Compare files in a Hugging Face cache with the hashes that name them");
  command->add_option("--root", arguments.options.root, "Follow links anywhere beneath this directory");
  command->add_option("--revision", arguments.options.revision, "Branch, tag or commit of a cached repository");
  command->add_flag_callback(
      "--allow-trailing-bytes", [&] { arguments.options.trailing_bytes = TrailingBytesPolicy::kAllow; },
      "Accept bytes behind the last tensor");
}

}  // namespace

int run(const std::vector<std::string>& arguments, Output& output) {
  CLI::App app("lading fills every parameter and every buffer of a model, on every rank, from checkpoint files.",
               "lading");
  app.require_subcommand(1);
  app.set_version_flag("--version", fmt::format("lading {}", version()));
  InspectArguments inspect_arguments;
  DemoArguments demo_arguments;
  add_inspect(app, inspect_arguments);
  CLI::App* demo = app.add_subcommand("demo", "Write a small sample checkpoint and inspect it");
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
  return demo->parsed() ? run_demo(demo_arguments, output) : run_inspect(inspect_arguments, output);
}

}  // namespace lading::cli
