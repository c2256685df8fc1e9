#include "base/error_json.h"
#include "base/json_writer.h"
#include "cli/plan_output.h"
#include "lading/version.h"

namespace lading::cli {
namespace {

void begin(JsonWriter& json, std::string_view schema) {
  json.begin_object();
  json.key("schema").string(schema);
  json.key("lading").string(version());
}

}  // namespace

std::string explanation_json(const PlanReport& report, std::string_view tensor,
                             const std::vector<ExplainedFact>& facts) {
  JsonWriter json;
  begin(json, "lading.explanation/1");
  json.key("ok").boolean(true);
  json.key("tensor").string(tensor);
  if (!report.ranks.empty()) json.key("rank").number(report.ranks.front().rank);
  json.key("facts").begin_array();
  for (const ExplainedFact& fact : facts) {
    json.begin_object(JsonWriter::Lines::kOne);
    json.key("topic").string(fact.topic).key("text").string(fact.text);
    json.end_object();
  }
  json.end_array().end_object();
  return json.take();
}

std::string difference_json(const PlanDifference& difference) {
  JsonWriter json;
  begin(json, "lading.plan_diff/1");
  json.key("ok").boolean(true);
  json.key("equal").boolean(difference.changes.empty());
  json.key("changes").begin_array();
  for (const PlanChange& change : difference.changes) {
    json.begin_object(JsonWriter::Lines::kOne);
    json.key("section").string(word(change.section));
    if (!change.name.empty()) json.key("name").string(change.name);
    if (!change.field.empty()) json.key("field").string(change.field);
    if (change.before) json.key("before").string(*change.before);
    if (change.after) json.key("after").string(*change.after);
    json.end_object();
  }
  json.end_array();
  json.key("ranks_not_compared").begin_array(JsonWriter::Lines::kOne);
  for (const std::uint64_t rank : difference.ranks_not_compared) json.number(rank);
  json.end_array().end_object();
  return json.take();
}

}  // namespace lading::cli
