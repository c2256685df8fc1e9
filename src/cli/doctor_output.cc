#include "cli/doctor_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/error_json.h"
#include "base/json_writer.h"
#include "base/text.h"
#include "base/version.h"
#include "cli/columns.h"
#include "cli/style.h"

namespace lading::cli {
namespace {

constexpr std::size_t kLevelWidth = 7;

std::string paint(FindingLevel level, std::string_view text, const Style& style) {
  switch (level) {
    case FindingLevel::kGood: return style.green(text);
    case FindingLevel::kSlower: return style.yellow(text);
    case FindingLevel::kMissing: return style.red(text);
    case FindingLevel::kUnknown: return style.dim(text);
  }
  return std::string(text);
}

std::size_t count(const std::vector<Finding>& findings, FindingLevel level) {
  return static_cast<std::size_t>(
      std::count_if(findings.begin(), findings.end(), [&](const Finding& finding) { return finding.level == level; }));
}

std::string summary(const std::vector<Finding>& findings, const Style& style) {
  const std::size_t slower = count(findings, FindingLevel::kSlower);
  const std::size_t missing = count(findings, FindingLevel::kMissing);
  if (slower + missing == 0) return style.green("nothing slows loads down") + "\n";
  std::string out = fmt::format("{} slower, {} missing", slower, missing);
  if (slower > 0)
    out += style.dim(
        "; speeds were measured on other machines (docs/reference/doctor.md) and show what to expect, no more");
  return out + "\n";
}

void begin(JsonWriter& json) {
  json.begin_object();
  json.key("schema").string("lading.doctor/1");
  json.key("lading").string(kVersion);
}

}  // namespace

std::string doctor_text(const std::string& path, const std::vector<Finding>& findings, Colour colour) {
  const Style style(colour);
  std::size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, width_of(escape(finding.id)));
  const std::string indent(kLevelWidth + width + 4, ' ');
  std::string out = style.bold(shown_name(path)) + "\n";
  for (const Finding& finding : findings) {
    out += fmt::format("{}  {}  {}\n", paint(finding.level, pad(word(finding.level), kLevelWidth), style),
                       pad(escape(finding.id), width), shorten(finding.found));
    if (!finding.cost.empty()) out += indent + style.dim("costs: ") + shorten(finding.cost) + "\n";
    if (!finding.remedy.empty()) out += indent + style.dim("do:    ") + shorten(finding.remedy) + "\n";
  }
  return out + "\n" + summary(findings, style);
}

std::string doctor_json(const std::string& path, const std::vector<Finding>& findings) {
  JsonWriter json;
  begin(json);
  json.key("ok").boolean(true);
  json.key("path").string(path);
  json.key("findings").begin_array();
  for (const Finding& finding : findings) {
    json.begin_object();
    json.key("id").string(finding.id);
    json.key("level").string(word(finding.level));
    json.key("found").string(finding.found);
    if (!finding.cost.empty()) json.key("cost").string(finding.cost);
    if (!finding.remedy.empty()) json.key("remedy").string(finding.remedy);
    json.end_object();
  }
  json.end_array();
  write_errors(json, "problems", {});
  json.end_object();
  return json.take();
}

std::string doctor_failure_json(const Error& problem) {
  JsonWriter json;
  begin(json);
  json.key("ok").boolean(false);
  write_errors(json, "problems", problem);
  json.end_object();
  return json.take();
}

}  // namespace lading::cli
