#include "cli/verify_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "api/answers.h"
#include "base/text.h"
#include "cli/columns.h"
#include "cli/ledger_paths.h"
#include "cli/plan_command.h"
#include "cli/problems.h"
#include "cli/style.h"

namespace lading::cli {
namespace {

constexpr std::size_t kNotVerifiedShown = 10;

std::string text_of(const Verification& found, Colour colour) {
  const Style style(colour);
  const std::string agreeing = plural(found.tensors_verified + found.tensors_partly_verified, "tensor");
  std::string out;
  if (found.differences.empty()) {
    out = fmt::format("{}: {} in memory, against {} of files\n", style.green("verified"), agreeing,
                      human_bytes(found.read_bytes));
  } else {
    out = fmt::format("{}: {}, listed above; {} agree\n", style.red("differs"),
                      plural(found.differences.size() + found.differences.not_listed(), "problem"), agreeing);
  }
  if (found.tensors_partly_verified > 0) {
    out += fmt::format("  {} partly: the ledger does not have all ranks\n",
                       plural(found.tensors_partly_verified, "tensor"));
  }
  if (!found.not_verified.empty()) {
    out += fmt::format("  {} not verified:\n", plural(found.not_verified.size(), "tensor"));
    const std::size_t shown = std::min(kNotVerifiedShown, found.not_verified.size());
    for (std::size_t i = 0; i < shown; ++i) {
      const auto& [tensor, reason] = found.not_verified[i];
      out += fmt::format("    {}  {}\n", shown_name(tensor), style.dim(shorten(reason)));
    }
    if (found.not_verified.size() > shown)
      out += style.dim(fmt::format("    … {} more; --json has all\n", with_commas(found.not_verified.size() - shown)));
  }
  return out;
}

}  // namespace

CLI::App* add_verify(CLI::App& app, VerifyArguments& arguments) {
  CLI::App* command = app.add_subcommand(
      "verify", "Compare the digests of the loaded tensors with the files, in any layout; exit code 6 if they differ");
  VerifyRequest& request = arguments.request;
  add_checkpoint(*command, request.checkpoint);
  command
      ->add_option("LEDGER", arguments.ledger,
                   "The ledger that load --ledger wrote, or a directory with the ledgers of all processes of a load")
      ->required();
  add_adapters(*command, arguments.adapters, "The path of an adapter of the ledger, once for each, in its order");
  command->add_option("--threads", request.threads, "Number of threads that read (0: chosen by lading)");
  command->add_flag("--json", arguments.json, "Write JSON to standard output (docs/schema/verify.md)");
  return command;
}

Exit run_verify(const VerifyArguments& arguments, Output& output) {
  const Style style(output.err_colour);
  VerifyRequest request = arguments.request;
  if (output.catch_signals) request.cancelled = output.catch_signals();
  const auto refuse = [&](const Refusal& refusal) {
    if (arguments.json)
      output.out += answer_of({"verify", refusal.stage, false, refusal.exit_code()}, refusal.problems);
    tell(refusal.problems, style.red("refused:"), output);
    return refusal.exit_code();
  };
  for (const std::string& path : arguments.adapters) request.adapters.push_back({path});
  auto ledgers = ledgers_at(arguments.ledger);
  if (!ledgers) return refuse({Stage::kDocuments, std::move(ledgers).error()});
  request.ledgers = *std::move(ledgers);
  const auto found = verify(request);
  if (!found) return refuse(found.error());
  tell(found->differences, style.red("differs:"), output);
  output.out += arguments.json ? answer_of(*found) : text_of(*found, output.out_colour);
  return found->exit_code();
}

}  // namespace lading::cli
