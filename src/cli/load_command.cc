#include "cli/load_command.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <utility>

#include "api/answers.h"
#include "api/values_file.h"
#include "api/write_ledger.h"
#include "base/text.h"
#include "cli/beside.h"
#include "cli/load_output.h"
#include "cli/problems.h"
#include "cli/progress.h"
#include "cli/style.h"

namespace lading::cli {
namespace {

const std::map<std::string, ReadMethod> kMethodOf(kReadMethods.begin(), kReadMethods.end());

const std::map<std::string, Exchange> kExchanges = {
    {"never", Exchange::kNever}, {"node", Exchange::kNode}, {"job", Exchange::kJob}};

Exit tell_failure(const LoadFailure& failure, const LoadArguments& arguments, Output& output) {
  const Style style(output.err_colour);
  if (arguments.json) {
    output.out += answer_of({"load", failure.refused, failure.begun, failure.exit_code()}, failure.problems);
  }
  tell(failure.problems, style.red(failure.refused ? "refused:" : "failed:"), output);
  if (failure.begun) output.err += "nothing that was loaded may be used: the destinations are incomplete\n";
  if (arguments.ledger && !failure.ledger.empty()) {
    if (auto written = write_ledger(*arguments.ledger, failure.ledger); !written) {
      tell(written.error(), style.red("failed:"), output);
    }
  }
  return failure.exit_code();
}

// Of a rank that loads among others: "ledger.json" becomes "ledger.rank3.json".
std::string ledger_of_rank(const std::string& path, std::uint64_t rank) {
  std::filesystem::path place(path);
  const std::string extension = place.extension().string();
  place.replace_extension(fmt::format(".rank{}{}", rank, extension));
  return place.string();
}

Exit refuse_usage(const Error& error, const LoadArguments& arguments, Output& output) {
  if (arguments.json) output.out += answer_of({"load", Stage::kRequest, false, exit_code(error.code)}, error);
  tell(error, Style(output.err_colour).red("refused:"), output);
  return exit_code(error.code);
}

Exit tell_success(const LoadReport& report, const LoadArguments& arguments, Output& output,
                  std::optional<std::uint64_t> group_read_bytes = {}) {
  const Style style(output.err_colour);
  tell_notes(report.plan.warnings, output);
  for (const std::string& note : report.notes) output.err += fmt::format("{} {}\n", style.yellow("note:"), note);
  if (arguments.ledger) {
    if (auto written = write_ledger(*arguments.ledger, ledger_json(report)); !written) {
      Error error = std::move(written).error();
      error.message += "; the load itself is done, but it has no ledger";
      if (arguments.json) output.out += answer_of({"load", std::nullopt, false, exit_code(error.code)}, error);
      tell(error, style.red("failed:"), output);
      return exit_code(error.code);
    }
  }
  output.out += arguments.json ? answer_of(LoadAnswer{report, false, group_read_bytes})
                               : load_text(report, output.out_colour, group_read_bytes);
  return Exit::kOk;
}

// Of a skeleton: the values that no checkpoint has. Nothing if there is no such file; the load then says what is
// missing.
Result<std::shared_ptr<ValuesFile>, Errors> values_of(const LoadArguments& arguments) {
  const auto path = arguments.values ? arguments.values : file_beside(arguments.inputs.skeleton, ".values.safetensors");
  if (!path) return std::shared_ptr<ValuesFile>();
  return ValuesFile::open(*path);
}

// Each process of an `mpirun` loads its own rank. The first one speaks for all, unless something went wrong.
Exit run_in_group(MpiGroup& group, LoadArguments arguments, Output& output) {
  GroupLoadRequest request{arguments.request, arguments.exchange, {}};
  if (arguments.ledger) {
    arguments.ledger = ledger_of_rank(*arguments.ledger, group.rank());
    if (auto place = check_ledger_place(*arguments.ledger); !place) request.refusal = std::move(place).error();
  }
  if (group.rank() != 0) request.load.progress = nullptr;
  const auto report = group.load(std::move(request));
  Exit code = Exit::kOk;
  if (report) {
    code = tell_success(report->report, arguments, output, report->read_bytes);
    if (group.rank() != 0 && code == Exit::kOk) output.err.clear();
    if (group.rank() != 0) output.out.clear();
  } else {
    tell_failure(report.error().failure, arguments, output);
    if (group.rank() != 0) output.out.clear();
    output.err += fmt::format("error id {}\n", report.error().error_id);
    code = report.error().exit_code;
  }
  // Before MPI ends: once one process has ended badly, mpirun does not wait for what the others have to say.
  if (output.live) output.live(std::exchange(output.err, {}));
  group.leave();
  return code;
}

}  // namespace

CLI::App* add_load(CLI::App& app, LoadArguments& arguments) {
  CLI::App* command = app.add_subcommand("load", "Load a checkpoint into this process's memory, all ranks of the mesh");
  LoadRequest& request = arguments.request;
  add_plan_inputs(*command, arguments.inputs);
  command
      ->add_option_function<std::uint64_t>(
          "--rank", [&arguments](std::uint64_t rank) { arguments.ranks = {{rank}}; }, "Load this rank only")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--alone", arguments.alone, "Under mpirun: load without the other processes");
  command
      ->add_option_function<std::string>(
          "--exchange", [&arguments](const std::string& word) { arguments.exchange = kExchanges.at(word); },
          "Under mpirun: what several ranks hold is read once per node or job, and handed over "
          "(docs/guides/exchange.md)")
      ->check(CLI::IsMember(kExchanges));
  command->add_option("--ledger", arguments.ledger, "Write the bill of lading to this file (docs/schema/ledger.md)");
  command->add_option(
      "--values", arguments.values,
      "What constructors compute, as lading skeleton -o writes it; without it, the one beside the skeleton");
  command->add_option("--threads", request.threads, "How many threads read; 0 is as many as help");
  command
      ->add_option_function<std::string>(
          "--io", [&request](const std::string& word) { request.read_method = kMethodOf.at(word); },
          "How files are read, for experiments; auto looks at the files")
      ->check(CLI::IsMember(kMethodOf));
  command->add_flag_callback(
      "--no-digests", [&request] { request.digests = Digests::kOff; }, "Do not take digests of what is in memory");
  command->add_flag_callback(
      "--poison", [&request] { request.poison = PoisonFirst::kYes; },
      "Overwrite the memory first, to show forgotten bytes");
  command->add_flag("--json", arguments.json, "Write JSON to standard output (docs/schema/load.md)");
  return command;
}

Exit run_load(const LoadArguments& arguments, Output& output) {
  LoadRequest request = arguments.request;
  auto plan = request_of(arguments.inputs, output);
  if (!plan) return tell_failure({Stage::kRequest, false, std::move(plan).error(), ""}, arguments, output);
  request.plan = *std::move(plan);
  request.plan.ranks = arguments.ranks;
  ProgressLine line(output);
  request.progress = [&](const LoadProgress& progress) { line.show(progress, ProgressLine::Clock::now()); };
  if (output.catch_signals) request.cancelled = output.catch_signals();
  auto values = values_of(arguments);
  if (!values) return tell_failure({Stage::kDocuments, false, values.error(), ""}, arguments, output);
  if (*values) {
    request.value = [file = *values](const std::string& name, std::uint64_t) { return file->of(name); };
  }
  // `--rank` says which rank this process is: it then loads alone.
  if (!request.plan.ranks && !arguments.alone) {
    auto group = MpiGroup::join();
    if (!group) return refuse_usage(group.error(), arguments, output);
    if (*group) {
      LoadArguments of_rank = arguments;
      of_rank.request = std::move(request);
      return run_in_group(**group, std::move(of_rank), output);
    }
  }
  if (arguments.ledger) {
    if (auto place = check_ledger_place(*arguments.ledger); !place) {
      return refuse_usage(place.error(), arguments, output);
    }
  }
  if (arguments.exchange != Exchange::kNever) {
    const Error error = Error(Code::kUsage, "there are no other processes to exchange bytes with")
                            .wanted("mpirun, without --alone and --rank")
                            .try_this("leave --exchange away: one process reads what its ranks share once");
    return refuse_usage(error, arguments, output);
  }
  const auto report = materialize(request);
  line.clear();
  return report ? tell_success(*report, arguments, output) : tell_failure(report.error(), arguments, output);
}

}  // namespace lading::cli
