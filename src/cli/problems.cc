#include "cli/problems.h"

#include <fmt/format.h>

#include "base/error_json.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "base/version.h"
#include "cli/style.h"

namespace lading::cli {

namespace {

void tell_lines(const Errors& errors, std::string_view label, Output& output) {
  for (const Error& error : errors) output.err += fmt::format("{} {}\n", label, error.text());
  if (errors.not_listed() > 0) {
    output.err += fmt::format("{} and {} more like these\n", label, with_commas(errors.not_listed()));
  }
}

}  // namespace

void tell(const Errors& errors, std::string_view label, Output& output) {
  tell_lines(errors, label, output);
  if (errors.empty() || !output.topics.empty()) return;
  const Error& first = errors.front();
  output.topics = fmt::format("{}{}{}", word(first.code), first.rule.empty() ? "" : " ", first.rule);
}

void tell_notes(const Errors& notes, Output& output) {
  tell_lines(notes, Style(output.err_colour).yellow("note:"), output);
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
