#include "api/save/save_part.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "base/json_fields.h"
#include "base/json_writer.h"

namespace lading {
namespace {

constexpr std::string_view kSchema = "lading.save_part/1";
constexpr std::string_view kPrefix = ".lading-part-";
constexpr std::string_view kEnding = ".json";

bool read_lane(std::string_view digits, std::uint64_t& lane) {
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), lane, 16);
  return error == std::errc() && end == digits.data() + digits.size();
}

}  // namespace

std::string part_name(std::uint64_t first_rank) { return fmt::format("{}{}{}", kPrefix, first_rank, kEnding); }

bool is_part_name(std::string_view name) { return name.starts_with(kPrefix) && name.ends_with(kEnding); }

std::string part_json(const SavePart& part) {
  JsonWriter json;
  json.begin_object();
  json.key("schema").string(kSchema);
  json.key("plan").string(part.plan);
  json.key("ranks").begin_array(JsonWriter::Lines::kOne);
  for (const std::uint64_t rank : part.ranks) json.number(rank);
  json.end_array();
  json.key("keys").begin_array();
  for (const exec::WrittenKey& key : part.keys) {
    json.begin_object(JsonWriter::Lines::kOne);
    json.key("source").number(std::uint64_t{key.source.number()});
    json.key("bytes").number(key.bytes);
    json.key("digest").string(key.digest.text());
    json.end_object();
  }
  json.end_array();
  json.end_object();
  return json.take();
}

Result<SavePart, Errors> parse_part(const JsonDocument& document, std::size_t source_count) {
  Errors errors;
  SavePart part;
  JsonFields fields = begin_document(document, kSchema, errors);
  fields.string("plan", part.plan);
  fields.each("ranks", [&](const JsonValue& value, const std::string&) {
    const auto rank = value.as_uint64();
    if (!rank) fields.problem(value, "ranks", "not a rank", "a whole number");
    part.ranks.push_back(rank.value_or(0));
  });
  fields.each("keys", [&](const JsonValue& value, const std::string& path) {
    JsonFields key(value, path, errors);
    std::uint64_t source = 0;
    std::string digest;
    exec::WrittenKey& written = part.keys.emplace_back();
    key.uint64("source", source);
    key.uint64("bytes", written.bytes);
    key.string("digest", digest);
    key.finish();
    const std::string_view digits = digest;
    const bool is_right = source < source_count && digits.size() == 32 &&
                          read_lane(digits.substr(0, 16), written.digest.lanes[0]) &&
                          read_lane(digits.substr(16), written.digest.lanes[1]);
    if (!is_right) fields.problem(value, "keys", "not what a save writes", "a source of the plan, and 32 digits");
    written.source = plan::SourceId(source);
  });
  fields.finish();
  if (!errors.empty()) return fail(std::move(errors));
  return part;
}

}  // namespace lading
