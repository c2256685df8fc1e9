#include "cli/convert/convert_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

#include "api/answers.h"
#include "api/save/save_answers.h"
#include "base/text.h"
#include "cli/columns.h"
#include "cli/plan_command.h"
#include "cli/problems.h"
#include "cli/progress.h"
#include "cli/style.h"

namespace lading::cli {
namespace {

const std::map<std::string, DType> kFloats = {{"bf16", DType::kBF16}, {"f16", DType::kF16}, {"f32", DType::kF32}};
const std::map<std::string, ExistingDirectory> kExisting = {{"refuse", ExistingDirectory::kRefuse},
                                                            {"replace", ExistingDirectory::kReplace}};

Exit tell_failed(const SaveFailure& failure, const ConvertArguments& arguments, Output& output) {
  if (arguments.json) {
    output.out += answer_of({"convert", failure.refused, false, failure.exit_code()}, failure.problems);
  }
  tell(failure.problems, Style(output.err_colour).red(failure.refused ? "refused:" : "failed:"), output);
  return failure.exit_code();
}

std::string convert_text(const ConvertReport& report, const ConvertArguments& arguments, Colour colour) {
  const Style style(colour);
  std::string out = style.bold(shorten(arguments.place.directory)) + "\n";
  out += fmt::format("{}: {} in {}, {} in {:.2f} s ({:.2f} GB/s), planned in {:.2f} s\n", style.green("converted"),
                     plural(report.plan.keys.size(), "tensor"), plural(report.plan.files.size(), "file"),
                     human_bytes(report.plan.bytes), report.converting_seconds,
                     static_cast<double>(report.plan.bytes) / std::max(report.converting_seconds, 1e-9) / 1e9,
                     report.planning_seconds);
  if (report.dequantized > 0) {
    out += style.dim(fmt::format("dequantized {}\n", plural(report.dequantized, "quantized tensor")));
  }
  if (!report.merged.empty()) {
    out += style.dim(
        fmt::format("added {} to {}\n", shorten(report.adapter_path), plural(report.merged.size(), "weight")));
  }
  if (!report.dropped.empty()) out += style.dim(fmt::format("dropped {}\n", plural(report.dropped.size(), "tensor")));
  out += style.dim(fmt::format("read {} in {} of at most {}, with {} of staging\n", human_bytes(report.read_bytes),
                               plural(report.plan.ranks.size(), "part"), human_bytes(report.part_bytes),
                               human_bytes(report.staging_bytes)));
  for (const std::string& name : report.beside) out += style.dim(fmt::format("with {}\n", shorten(name)));
  return out;
}

void add_names(CLI::App& command, ConvertRequest& request) {
  const auto patterns = [&](const char* option, std::vector<NamePattern>& list, const char* help) {
    return command
        .add_option_function<std::vector<std::string>>(
            option, [&list](const std::vector<std::string>& words) { list.assign(words.begin(), words.end()); }, help)
        ->allow_extra_args(false);
  };
  CLI::Option* rename =
      command
          .add_option_function<std::vector<std::string>>(
              "--rename",
              [&request](const std::vector<std::string>& words) {
                for (const std::string& word : words) {
                  const std::size_t equals = word.find('=');
                  if (equals == std::string::npos || equals != word.rfind('='))
                    throw CLI::ValidationError("--rename", "not OLD=NEW: " + word);
                  request.renames.emplace_back(word.substr(0, equals), word.substr(equals + 1));
                }
              },
              "OLD=NEW, once for each: the new name of a tensor. \"*\" in OLD matches any characters, \"*\" in NEW "
              "stands for them")
          ->allow_extra_args(false);
  patterns("--drop", request.drop, "PATTERN, once for each: tensors that are left out");
  CLI::Option* mapping =
      command
          .add_option_function<std::string>(
              "--mapping", [&request](const std::string& path) { request.mapping = Document::file(path); },
              "Which tensors of the checkpoint make which new ones, as JSON (docs/schema/mapping.md)")
          ->excludes(rename);
  command.add_option_function<std::string>(
      "--adapter", [&request](const std::string& path) { request.adapter = CheckpointRef{path}; },
      "A LoRA of PEFT that is added to the weights: the directory with adapter_config.json");
  patterns("--keep", request.keep, "PATTERN, once for each: tensors that keep their names though no rule reaches them")
      ->needs(mapping);
}

}  // namespace

CLI::App* add_convert(CLI::App& app, ConvertArguments& arguments) {
  CLI::App* command = app.add_subcommand(
      "convert", "Write a checkpoint anew: in another dtype, in other files, quantized weights as ordinary ones");
  ConvertRequest& request = arguments.request;
  add_checkpoint(*command, request.checkpoint);
  command->add_option("OUT", arguments.place.directory, "The directory to be made")->required();
  command
      ->add_option_function<std::string>(
          "--dtype", [&request](const std::string& word) { request.dtype = kFloats.at(word); },
          "Of all floating tensors (default: as in the files, and of dequantized ones as config.json says, or bf16)")
      ->check(CLI::IsMember(kFloats));
  add_names(*command, request);
  command
      ->add_option("--max-shard-size", request.max_shard_bytes,
                   "Bytes of tensors in a file, such as 2GB or 500MiB (default: 5GB)")
      ->transform(CLI::AsSizeValue(true))
      ->check(CLI::PositiveNumber);
  command
      ->add_option_function<std::string>(
          "--exist", [&arguments](const std::string& word) { arguments.place.existing = kExisting.at(word); },
          "If OUT exists: refuse (default), or replace the directory in one step")
      ->check(CLI::IsMember(kExisting));
  command->add_option("--threads", request.threads, "Number of threads (0: chosen by lading)");
  command->add_flag("--json", arguments.json, "Write JSON to standard output (docs/schema/convert.md)");
  return command;
}

Exit run_convert(const ConvertArguments& arguments, Output& output) {
  ConvertRequest request = arguments.request;
  ProgressLine line(output);
  request.progress = [&](const LoadProgress& progress) { line.show(progress, ProgressLine::Clock::now()); };
  if (output.catch_signals) request.cancelled = output.catch_signals();
  const auto report = convert(request, arguments.place);
  line.clear();
  if (!report) return tell_failed(report.error(), arguments, output);
  tell_notes(report->warnings, output);
  output.out +=
      arguments.json ? answer_of(*report, arguments.place) : convert_text(*report, arguments, output.out_colour);
  return Exit::kOk;
}

}  // namespace lading::cli
