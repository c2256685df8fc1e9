#include "cli/plan_command.h"

#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "api/answers.h"
#include "api/document.h"
#include "api/save/save_answers.h"
#include "cli/beside.h"
#include "cli/inspect_command.h"
#include "cli/plan_output.h"
#include "cli/problems.h"
#include "cli/save/save_plan_text.h"
#include "cli/style.h"

namespace lading::cli {
namespace {

void add_documents(CLI::App& command, PlanInputs& inputs) {
  const auto document = [&](const char* option, std::optional<Document>& place, const char* help) {
    command.add_option_function<std::string>(
        option, [&place](const std::string& path) { place = Document::file(path); }, help);
  };
  document("--skeleton", inputs.skeleton, "The model, as JSON (default: the tensors of the checkpoint)");
  document("--layout", inputs.layout.layout, "Mesh and placements, as JSON");
  document("--mapping", inputs.mapping,
           "Which checkpoint tensors make which model tensors, as JSON (default: the file beside the skeleton)");
  document("--policy", inputs.policy,
           "Dtypes, and which tensors may be missing or kept, as JSON (default: the file beside the skeleton)");
}

void add_strategy(CLI::App& command, LayoutWords& words) {
  CLI::Option* layout = command.get_option("--layout");
  command.add_option("--mesh", words.mesh, "Axes and sizes, such as dp=4,tp=2")->excludes(layout);
  command.add_option("--strategy", words.strategy, "single, ddp, fsdp2, hsdp, tp, fsdp2+tp or zero3")->excludes(layout);
  CLI::Option* device =
      command.add_option("--device", words.device, "cpu, cuda, or with one rank a device such as cuda:1");
  device->excludes(layout);
  command
      .add_option("--devices-per-node", words.devices_per_node,
                  "Rank r uses cuda:(r % N) (default: the number of ranks, at most 8)")
      ->check(CLI::PositiveNumber)
      ->needs(device)
      ->excludes(layout);
  command
      .add_option_function<std::vector<std::string>>(
          "--tp-plan",
          [&words](const std::vector<std::string>& rules) {
            for (const std::string& rule : rules) {
              const std::size_t equals = rule.rfind('=');
              if (equals == std::string::npos) throw CLI::ValidationError("--tp-plan", "not PATTERN=STYLE: " + rule);
              words.tp_plan.emplace_back(rule.substr(0, equals), rule.substr(equals + 1));
            }
          },
          "PATTERN=STYLE, once for each rule: colwise, rowwise, vocab or replicate; the first matching rule applies")
      ->allow_extra_args(false)
      ->excludes(layout);
}

void add_ranks(CLI::App& command, PlanArguments& arguments) {
  CLI::Option* one = command.add_option_function<std::uint64_t>(
      "--rank", [&arguments](std::uint64_t rank) { arguments.ranks = {{rank}}; }, "Plan this rank (default: 0)");
  one->check(CLI::NonNegativeNumber);  // CLI11 would make 2^64 - 1 of -1
  command
      .add_flag_callback(
          "--all-ranks", [&arguments] { arguments.ranks.reset(); }, "Plan every rank")
      ->excludes(one);
}

Result<AdapterRef, Errors> adapter_of(const std::string& text) {
  AdapterRef adapter;
  std::error_code ignored;  // of a path that cannot be looked at, which is told when it is opened
  // A path may have the sign in it.
  const std::size_t equals = std::filesystem::exists(text, ignored) ? std::string::npos : text.rfind('=');
  adapter.checkpoint.path = text.substr(0, equals);
  if (equals == std::string::npos) return adapter;
  const Document file = Document::file(text.substr(equals + 1));
  const DocumentLimits limits{"names"};
  LADING_ASSIGN_OR_RETURN(const JsonDocument document, read_document(file, limits));
  bool is_good = document.root().is_object();
  for (const JsonMember member : document.root()) {
    is_good = is_good && member.value.is_string();
    if (is_good) adapter.names.emplace(member.key, member.value.text());
  }
  if (is_good) return adapter;
  return fail(Errors(Error(Code::kSchema, "the file does not name tensors by key")
                         .in_file(document_name(file, limits))
                         .wanted("an object of strings, from the adapter's keys to names of the model")));
}

Exit tell_refusal(const Refusal& refusal, const PlanArguments& arguments, Output& output) {
  const Style style(output.err_colour);
  if (arguments.json) output.out += refusal_json("lading.plan/1", refusal.problems);
  const bool bug = refusal.stage == Stage::kProof;
  if (bug) output.err += "lading: this is a bug in lading: its plan fails its own proof. Please report it.\n";
  tell(refusal.problems, style.red(bug ? "bug:" : "refused:"), output);
  return refusal.exit_code();
}

Exit run_explain(const PlanReport& report, const PlanArguments& arguments, Output& output) {
  const auto facts = explain(report, *arguments.explain);
  if (!facts) return tell_refusal(facts.error(), arguments, output);
  output.out += arguments.json ? explanation_json(report, *arguments.explain, *facts)
                               : explanation_text(*facts, output.out_colour);
  return Exit::kOk;
}

Exit run_diff(const PlanReport& report, const PlanArguments& arguments, Output& output) {
  const auto difference = diff(report, Document::file(*arguments.diff));
  if (!difference) return tell_refusal(difference.error(), arguments, output);
  output.out += arguments.json ? difference_json(*difference) : difference_text(*difference, output.out_colour);
  return difference->changes.empty() ? Exit::kOk : Exit::kDiffers;
}

// Of all ranks, into the files of the checkpoint.
Exit run_plan_save(const PlanRequest& inputs, const PlanArguments& arguments, Output& output) {
  const auto begin = std::chrono::steady_clock::now();
  SaveRequest request;
  request.base = inputs.checkpoint;
  request.skeleton = inputs.skeleton;
  request.mapping = inputs.mapping;
  request.layout = inputs.layout;
  request.ranks.reset();
  const auto report = plan_save(request);
  if (!report) {
    if (arguments.json) {
      output.out +=
          answer_of({"save_plan", report.error().stage, false, report.error().exit_code()}, report.error().problems);
    }
    tell(report.error().problems, Style(output.err_colour).red("refused:"), output);
    return report.error().exit_code();
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  tell_notes(report->warnings, output);
  output.out += arguments.json ? answer_of(*report, destinations_of(*report), seconds.count())
                               : save_plan_text(*report, output.out_colour);
  return Exit::kOk;
}

}  // namespace

void add_adapters(CLI::App& command, std::vector<std::string>& adapters, const char* help) {
  command.add_option("--adapter", adapters, help)->allow_extra_args(false);
}

CLI::Option* add_checkpoint(CLI::App& command, CheckpointRef& checkpoint) {
  CLI::Option* option =
      command
          .add_option("CKPT", checkpoint.path,
                      "The checkpoint: a file, an index, a directory, or org/name in the Hugging Face cache")
          ->required();
  add_checkpoint_options(command, checkpoint);
  return option;
}

void add_plan_inputs(CLI::App& command, PlanInputs& inputs) {
  CLI::Option* checkpoint = add_checkpoint(command, inputs.checkpoint);
  const auto without_checkpoint = [&inputs, checkpoint] {
    inputs.start = Start::kWithoutCheckpoint;
    checkpoint->required(false);
  };
  command
      .add_flag_callback("--initialize", without_checkpoint,
                         "Start without a checkpoint: every tensor of the skeleton gets its initial value")
      ->excludes(checkpoint);
  add_documents(command, inputs);
  add_adapters(
      command, inputs.adapters,
      "PATH or PATH=NAMES, once for each: an adapter that is loaded with the checkpoint. NAMES is a JSON file, an "
      "object from the adapter's keys to names of the model; without it, the keys are the names");
  add_strategy(command, inputs.layout);
}

Result<PlanRequest, Errors> request_of(const PlanInputs& inputs, Output& output) {
  PlanRequest request;
  LADING_ASSIGN_OR_RETURN(request.layout, layout_of(inputs.layout));
  request.checkpoint = inputs.checkpoint;
  request.start = inputs.start;
  if (inputs.skeleton) request.skeleton = *inputs.skeleton;
  // The mapping beside the skeleton is about keys.
  const bool has_keys = inputs.start == Start::kFromCheckpoint;
  auto mapping = has_keys ? document_or_beside(inputs.mapping, inputs.skeleton, "mapping", output) : inputs.mapping;
  if (mapping) request.mapping = *std::move(mapping);
  for (const std::string& text : inputs.adapters) {
    LADING_ASSIGN_OR_RETURN(AdapterRef adapter, adapter_of(text));
    request.adapters.push_back(std::move(adapter));
  }
  if (auto policy = document_or_beside(inputs.policy, inputs.skeleton, "policy", output)) request.policy = *policy;
  return request;
}

CLI::App* add_plan(CLI::App& app, PlanArguments& arguments) {
  CLI::App* command =
      app.add_subcommand("plan", "Show what each rank would load from which files, or every reason why it cannot");
  add_plan_inputs(*command, arguments.inputs);
  add_ranks(*command, arguments);
  command->add_flag_callback(
      "--tensors", [&] { arguments.list = ListTensors::kYes; }, "List every tensor");
  command->add_flag("--json", arguments.json, "Write JSON to standard output (docs/schema/plan.md)");
  CLI::Option* explain =
      command->add_option("--explain", arguments.explain, "Explain where this tensor comes from, and why");
  CLI::Option* diff = command
                          ->add_option("--diff", arguments.diff,
                                       "Compare with a plan that --json wrote before; exit code 6 if they differ")
                          ->excludes(explain);
  CLI::Option* save = command->add_flag(
      "--save", arguments.save, "Show what each rank would write to which file, if the model were saved as CKPT is");
  for (CLI::Option* other : {explain, diff}) save->excludes(other);
  for (const char* other : {"--initialize", "--policy", "--adapter", "--rank", "--all-ranks", "--tensors"}) {
    save->excludes(command->get_option(other));
  }
  return command;
}

Exit run_plan(const PlanArguments& arguments, Output& output) {
  auto request = request_of(arguments.inputs, output);
  if (!request) return tell_refusal({Stage::kRequest, std::move(request).error()}, arguments, output);
  if (arguments.save) return run_plan_save(*request, arguments, output);
  request->ranks = arguments.ranks;
  const auto report = make_plan(*request);
  if (!report) return tell_refusal(report.error(), arguments, output);
  tell_notes(report->warnings, output);
  if (arguments.explain) return run_explain(*report, arguments, output);
  if (arguments.diff) return run_diff(*report, arguments, output);
  output.out += arguments.json ? plan_json(*report) : plan_text(*report, arguments.list, output.out_colour);
  return Exit::kOk;
}

}  // namespace lading::cli
