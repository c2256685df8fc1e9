#include "cli/problems.h"

#include <fmt/format.h>

#include "base/error_json.h"
#include "base/json_writer.h"
#include "base/problems/folding.h"
#include "base/text.h"
#include "base/version.h"
#include "cli/style.h"

namespace lading::cli {

namespace {

// A line that belongs to the one before it has no label.
void write_lines(const std::vector<std::string>& lines, std::string_view label, Output& output) {
  for (const std::string& line : lines) {
    output.err += line.starts_with(' ') ? fmt::format("{}\n", line) : fmt::format("{} {}\n", label, line);
  }
}

}  // namespace

void tell(const Errors& errors, std::string_view label, Output& output) {
  write_lines(folded(errors), label, output);
  if (errors.not_listed() > 0) {
    output.err += fmt::format("{} and {} more problems\n", label, with_commas(errors.not_listed()));
  }
  if (errors.empty() || !output.topics.empty()) return;
  const Error& first = errors.front();
  output.topics = fmt::format("{}{}{}", word(first.code), first.rule.empty() ? "" : " ", first.rule);
}

void tell_notes(const Errors& notes, Output& output) {
  const std::string label = Style(output.err_colour).yellow("note:");
  write_lines(folded(notes, Remedies::kOwn), label, output);
  if (notes.not_listed() > 0) output.err += fmt::format("{} and {} more\n", label, with_commas(notes.not_listed()));
}

void tell_where_help_is(Output& output) {
  if (output.topics.empty()) return;
  output.err += fmt::format("Run `lading help {}` to see what this means and what to do.\n", output.topics);
}

std::string refusal_json(std::string_view schema, const Errors& problems) {
  JsonWriter json;
  json.begin_object();
  json.key("schema").string(schema);
  json.key("lading").string(kVersion);
  json.key("ok").boolean(false);
  write_errors(json, "problems", problems);
  json.end_object();
  return json.take();
}

}  // namespace lading::cli
