#include "base/error_json.h"

namespace lading {
namespace {

void write_text(JsonWriter& json, std::string_view key, std::string_view text) {
  if (!text.empty()) json.key(key).string(text);
}

void write_error(JsonWriter& json, const Error& error, Remedies remedies) {
  json.begin_object();
  json.key("code").string(word(error.code));
  json.key("message").string(error.message);
  write_text(json, "file", error.file);
  if (error.tensor) json.key("tensor").string(*error.tensor);
  if (error.bytes) {
    json.key("bytes").begin_array().number(error.bytes->begin).number(error.bytes->end).end_array();
  }
  if (error.rank) json.key("rank").number(static_cast<std::uint64_t>(*error.rank));
  write_text(json, "rule", error.rule);
  write_text(json, "expected", error.expected);
  write_text(json, "found", error.found);
  write_text(json, "remedy", remedy_of(error, remedies));
  json.end_object();
}

}  // namespace

void write_errors(JsonWriter& json, std::string_view key, const Errors& errors, Remedies remedies) {
  json.key(key).begin_array();
  for (const Error& error : errors) write_error(json, error, remedies);
  json.end_array();
  if (errors.not_listed() > 0) json.key(std::string(key) + "_not_listed").number(errors.not_listed());
}

}  // namespace lading
