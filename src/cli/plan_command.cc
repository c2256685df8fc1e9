#include "cli/plan_command.h"

#include <utility>
#include <vector>

#include "cli/beside.h"
#include "cli/inspect_command.h"
#include "cli/plan_output.h"
#include "cli/problems.h"
#include "cli/style.h"

namespace lading::cli {
namespace {

void add_documents(CLI::App& command, PlanInputs& inputs) {
  const auto document = [&](const char* option, std::optional<Document>& place, const char* help) {
    command.add_option_function<std::string>(
        option, [&place](const std::string& path) { place = Document::file(path); }, help);
  };
  document("--skeleton", inputs.skeleton, "The model, as JSON; without it, the checkpoint itself is the model");
  document("--layout", inputs.layout.layout, "Mesh and placements, as JSON");
  document("--mapping", inputs.mapping,
           "How model tensors are made of checkpoint tensors, as JSON; without it, the one beside the skeleton");
  document("--policy", inputs.policy,
           "Dtypes, and what may be missing or kept, as JSON; without it, the one beside the skeleton");
}

void add_strategy(CLI::App& command, LayoutWords& words) {
  CLI::Option* layout = command.get_option("--layout");
  command.add_option("--mesh", words.mesh, "Axes and sizes, such as dp=4,tp=2")->excludes(layout);
  command.add_option("--strategy", words.strategy, "single, ddp, fsdp2, hsdp, tp, fsdp2+tp or zero3")->excludes(layout);
  CLI::Option* device = command.add_option("--device", words.device, "cpu, cuda, or for one rank such as cuda:1");
  device->excludes(layout);
  command
      .add_option("--devices-per-node", words.devices_per_node,
                  "Rank r has cuda:(r % N); all ranks if they are at most 8, else 8")
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
          "PATTERN=STYLE, once for each rule: colwise, rowwise, vocab or replicate; the first that matches decides")
      ->allow_extra_args(false)
      ->excludes(layout);
}

void add_ranks(CLI::App& command, PlanArguments& arguments) {
  CLI::Option* one = command.add_option_function<std::uint64_t>(
      "--rank", [&arguments](std::uint64_t rank) { arguments.ranks = {{rank}}; }, "Work this rank out (0)");
  one->check(CLI::NonNegativeNumber);  // CLI11 would make 2^64 - 1 of -1
  command
      .add_flag_callback(
          "--all-ranks", [&arguments] { arguments.ranks.reset(); }, "Work every rank out")
      ->excludes(one);
}

Exit tell_refusal(const Refusal& refusal, const PlanArguments& arguments, Output& output) {
  const Style style(output.err_colour);
  if (arguments.json) output.out += refusal_json("lading.plan/1", refusal.problems);
  const bool bug = refusal.stage == Stage::kProof;
  if (bug) output.err += "lading: a bug: the plan that was made does not hold. Please report it.\n";
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

}  // namespace

CLI::Option* add_checkpoint(CLI::App& command, CheckpointRef& checkpoint) {
  CLI::Option* option = command.add_option("CKPT", checkpoint.path, "The checkpoint, as inspect takes it")->required();
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
  if (auto policy = document_or_beside(inputs.policy, inputs.skeleton, "policy", output)) request.policy = *policy;
  return request;
}

CLI::App* add_plan(CLI::App& app, PlanArguments& arguments) {
  CLI::App* command =
      app.add_subcommand("plan", "Show what each rank would load from where, or every reason why it cannot");
  add_plan_inputs(*command, arguments.inputs);
  add_ranks(*command, arguments);
  command->add_flag_callback(
      "--tensors", [&] { arguments.list = ListTensors::kYes; }, "List every tensor");
  command->add_flag("--json", arguments.json, "Write JSON to standard output (docs/schema/plan.md)");
  CLI::Option* explain = command->add_option("--explain", arguments.explain, "Say why this tensor is what it is");
  command
      ->add_option("--diff", arguments.diff, "Compare with a plan that --json wrote before; exit code 6 if they differ")
      ->excludes(explain);
  return command;
}

Exit run_plan(const PlanArguments& arguments, Output& output) {
  auto request = request_of(arguments.inputs, output);
  if (!request) return tell_refusal({Stage::kRequest, std::move(request).error()}, arguments, output);
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
