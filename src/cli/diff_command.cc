#include "cli/diff_command.h"

#include <fmt/format.h>

#include <utility>

#include "base/error_json.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "base/version.h"
#include "cli/columns.h"
#include "cli/ledger_paths.h"
#include "cli/problems.h"
#include "cli/style.h"
#include "lading/compare.h"

namespace lading::cli {
namespace {

constexpr std::string_view kDiffSchema = "lading.diff/1";

std::string text_of(const LedgerComparison& found, Colour colour) {
  const Style style(colour);
  std::string out = found.differences.empty()
                        ? fmt::format("{}: {}\n", style.green("equal"), plural(found.tensors_equal, "tensor"))
                        : fmt::format("{}: {}, listed above; {} equal\n", style.red("differs"),
                                      plural(found.differences.size() + found.differences.not_listed(), "problem"),
                                      plural(found.tensors_equal, "tensor"));
  for (const auto& [tensor, reason] : found.not_compared) {
    out += fmt::format("  not compared: {}  {}\n", shown_name(tensor), style.dim(reason));
  }
  return out;
}

std::string json_of(const LedgerComparison& found) {
  JsonWriter json;
  json.begin_object();
  json.key("schema").string(kDiffSchema);
  json.key("lading").string(kVersion);
  json.key("ok").boolean(found.differences.empty());
  json.key("tensors_equal").number(found.tensors_equal);
  json.key("not_compared").begin_array();
  for (const auto& [tensor, reason] : found.not_compared) {
    json.begin_object(JsonWriter::Lines::kOne).key("name").string(tensor).key("reason").string(reason).end_object();
  }
  json.end_array();
  write_errors(json, "problems", found.differences);
  json.end_object();
  return json.take();
}

}  // namespace

CLI::App* add_diff(CLI::App& app, DiffArguments& arguments) {
  CLI::App* command =
      app.add_subcommand("diff", "Compare two loads by their ledgers, in any layouts; exit code 6 if they differ");
  command->add_option("FIRST", arguments.first, "A ledger, or a directory with the ledgers of all processes of a load")
      ->required();
  command->add_option("SECOND", arguments.second, "The same for the other load")->required();
  command->add_flag("--json", arguments.json, "Write JSON to standard output (docs/schema/diff.md)");
  return command;
}

Exit run_diff(const DiffArguments& arguments, Output& output) {
  const Style style(output.err_colour);
  const auto refuse = [&](const Refusal& refusal) {
    if (arguments.json) output.out += refusal_json(kDiffSchema, refusal.problems);
    tell(refusal.problems, style.red("refused:"), output);
    return refusal.exit_code();
  };
  auto first = ledgers_at(arguments.first);
  auto second = ledgers_at(arguments.second);
  Errors problems;
  if (!first) problems.add(first.error());
  if (!second) problems.add(second.error());
  if (!problems.empty()) return refuse({Stage::kDocuments, std::move(problems)});
  const auto found = compare({*std::move(first), *std::move(second)});
  if (!found) return refuse(found.error());
  tell(found->differences, style.red("differs:"), output);
  output.out += arguments.json ? json_of(*found) : text_of(*found, output.out_colour);
  return found->differences.empty() ? Exit::kOk : Exit::kDiffers;
}

}  // namespace lading::cli
