#include "cli/help/help_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "api/answers.h"
#include "cli/problems.h"
#include "cli/style.h"
#include "lading/help.h"

namespace lading::cli {

CLI::App* add_help(CLI::App& app, HelpArguments& arguments) {
  CLI::App* command = app.add_subcommand("help", "Explain an error code, a rule, an exit code or a word of a policy");
  command->add_option("TOPIC", arguments.topics,
                      "Such as header_overlap, R45, 3 or promote; several are explained one after the other, "
                      "and without one all are listed");
  command->add_flag("--json", arguments.json, "Write JSON to standard output (docs/schema/help.md)");
  return command;
}

Exit run_help(const HelpArguments& arguments, Output& output) {
  if (arguments.topics.empty()) {
    const std::string text = "lading help TOPIC explains one of these:\n\n" + help_overview();
    output.out += arguments.json ? answer_of_help(help_topics(), text) : text;
    return Exit::kOk;
  }
  std::vector<HelpTopic> found;
  std::string about_commands;
  Errors unknown;
  for (const std::string& topic : arguments.topics) {
    if (arguments.topics.size() > 1 && (topic == "exit" || topic == "code")) continue;  // of "exit code 3"
    const bool is_command =
        std::find(arguments.commands.begin(), arguments.commands.end(), topic) != arguments.commands.end();
    if (is_command) about_commands += fmt::format("`lading {0} --help` describes the command {0}.\n", topic);
    auto topics = help(topic);
    if (topics) {
      found.insert(found.end(), topics->begin(), topics->end());
    } else if (!is_command || arguments.json) {
      unknown.add(std::move(topics).error());
    }
  }
  if (!unknown.empty()) {
    if (arguments.json) output.out += answer_of({"help", Stage::kRequest, false, Exit::kUsage}, unknown);
    tell(unknown, Style(output.err_colour).red("refused:"), output);
    output.topics.clear();  // the reader knows that help exists
    return Exit::kUsage;
  }
  if (!found.empty() && !about_commands.empty()) about_commands.insert(0, "\n");
  output.out += arguments.json ? answer_of_help(found, help_text(found)) : help_text(found) + about_commands;
  return Exit::kOk;
}

}  // namespace lading::cli
