#include "cli/diff_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error_json.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "base/version.h"
#include "cli/columns.h"
#include "cli/problems.h"
#include "cli/style.h"
#include "lading/compare.h"

namespace lading::cli {
namespace {

constexpr int kDiffers = 6;
constexpr std::string_view kSchema = "lading.diff/1";

// A directory is one load's: a ledger per process. What else is wrong with a path is said when it is read.
std::vector<PlanDocument> documents_at(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return {PlanDocument::file(path)};
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(path, ignored)) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<PlanDocument> documents;
  documents.reserve(paths.size());
  for (std::string& one : paths) documents.push_back(PlanDocument::file(std::move(one)));
  return documents;
}

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
  json.key("schema").string(kSchema);
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
  CLI::App* command = app.add_subcommand(
      "diff", "Compare two loads by their ledgers, whatever their layouts were; exit code 6 if they differ");
  command->add_option("FIRST", arguments.first, "A ledger, or a directory of the ledgers of one load's processes")
      ->required();
  command->add_option("SECOND", arguments.second, "The other load's")->required();
  command->add_flag("--json", arguments.json, "Write JSON to standard output (docs/schema/diff.md)");
  return command;
}

int run_diff(const DiffArguments& arguments, Output& output) {
  const Style style(output.err_colour);
  const auto found = compare({documents_at(arguments.first), documents_at(arguments.second)});
  if (!found) {
    if (arguments.json) output.out += refusal_json(kSchema, found.error().problems);
    tell(found.error().problems, style.red("refused:"), output);
    return found.error().exit_code();
  }
  tell(found->differences, style.red("differs:"), output);
  output.out += arguments.json ? json_of(*found) : text_of(*found, output.out_colour);
  return found->differences.empty() ? 0 : kDiffers;
}

}  // namespace lading::cli
