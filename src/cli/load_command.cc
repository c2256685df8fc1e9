#include "cli/load_command.h"

#include <fmt/format.h>

#include <fstream>
#include <map>
#include <utility>

#include "base/text.h"
#include "cli/load_output.h"
#include "cli/plan_command.h"
#include "cli/problems.h"
#include "cli/progress.h"
#include "cli/style.h"

namespace lading::cli {
namespace {

const std::map<std::string, ReadMethod> kReadMethods = {{"auto", ReadMethod::kAuto},
                                                        {"pread", ReadMethod::kPread},
                                                        {"direct", ReadMethod::kDirect},
                                                        {"uring", ReadMethod::kUring},
                                                        {"uring-direct", ReadMethod::kUringDirect}};

Result<void> write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (file) return {};
  return fail(Error(Code::kWriteFailed, "the ledger could not be written")
                  .in_file(path)
                  .try_this("choose a place that can be written to; the load itself is done"));
}

int tell_failure(const LoadFailure& failure, const LoadArguments& arguments, Output& output) {
  const Style style(output.err_colour);
  if (arguments.json) output.out += load_failure_json(failure);
  tell(failure.problems, style.red(failure.refused ? "refused:" : "failed:"), output);
  if (failure.begun) output.err += "nothing that was loaded may be used: the destinations are incomplete\n";
  if (arguments.ledger && failure.begun) {
    if (auto written = write_file(*arguments.ledger, failure.ledger); !written) {
      tell(written.error(), style.red("failed:"), output);
    }
  }
  return failure.exit_code();
}

}  // namespace

CLI::App* add_load(CLI::App& app, LoadArguments& arguments) {
  CLI::App* command = app.add_subcommand("load", "Load a checkpoint into this process's memory, all ranks of the mesh");
  Request& request = arguments.request;
  request.plan.ranks.reset();
  add_plan_inputs(*command, request.plan);
  command
      ->add_option_function<std::uint64_t>(
          "--rank", [&request](std::uint64_t rank) { request.plan.ranks = {{rank}}; }, "Load this rank only")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--ledger", arguments.ledger, "Write the bill of lading to this file (docs/schema/ledger.md)");
  command->add_option("--threads", request.threads, "How many threads read; 0 is as many as help");
  command
      ->add_option_function<std::string>(
          "--io", [&request](const std::string& word) { request.read_method = kReadMethods.at(word); },
          "How files are read, for experiments; auto looks at the files")
      ->check(CLI::IsMember({"auto", "pread", "direct", "uring", "uring-direct"}));
  command->add_flag_callback(
      "--no-digests", [&request] { request.digests = Digests::kOff; }, "Do not take digests of what is in memory");
  command->add_flag_callback(
      "--poison", [&request] { request.poison = PoisonFirst::kYes; },
      "Overwrite the memory first, to show forgotten bytes");
  command->add_flag("--json", arguments.json, "Write JSON to standard output (docs/schema/load.md)");
  return command;
}

int run_load(const LoadArguments& arguments, Output& output) {
  Request request = arguments.request;
  ProgressLine line(output);
  request.progress = [&](const LoadProgress& progress) { line.show(progress, ProgressLine::Clock::now()); };
  if (output.catch_signals) request.cancelled = output.catch_signals();
  const auto report = materialize(request);
  line.clear();
  if (!report) return tell_failure(report.error(), arguments, output);
  const Style style(output.err_colour);
  tell(report->plan.warnings, style.yellow("note:"), output);
  for (const std::string& note : report->notes) output.err += fmt::format("{} {}\n", style.yellow("note:"), note);
  if (arguments.ledger) {
    if (auto written = write_file(*arguments.ledger, ledger_json(*report)); !written) {
      if (arguments.json) output.out += load_failure_json({{}, false, written.error(), ""});
      tell(written.error(), style.red("failed:"), output);
      return exit_code(written.error().code);
    }
  }
  output.out += arguments.json ? load_json(*report) : load_text(*report, output.out_colour);
  return 0;
}

}  // namespace lading::cli
