#include "base/name_pattern.h"

#include <fmt/format.h>

#include <cstring>

namespace lading {

NamePattern NamePattern::exact(std::string_view name) {
  NamePattern made{std::string(name)};
  made.is_exact = true;
  return made;
}

bool NamePattern::matches(std::string_view name) const {
  if (is_one_name()) return text == name;
  const std::string_view pattern = text;
  const std::size_t first = pattern.find('*');
  const std::size_t last = pattern.rfind('*');
  const std::string_view head = pattern.substr(0, first);
  const std::string_view tail = pattern.substr(last + 1);
  if (name.size() < head.size() + tail.size()) return false;
  if (name.substr(0, head.size()) != head || name.substr(name.size() - tail.size()) != tail) return false;

  // What stands between stars is taken where it comes first: a later place would only leave less for the rest.
  std::string_view rest = name.substr(head.size(), name.size() - head.size() - tail.size());
  for (std::size_t star = first; star != last;) {
    const std::size_t next = pattern.find('*', star + 1);
    const std::string_view piece = pattern.substr(star + 1, next - star - 1);
    star = next;
    if (piece.empty()) continue;
    if (rest.size() < piece.size()) return false;
    // memmem is linear at its worst; string_view::find is not.
    const void* const found = memmem(rest.data(), rest.size(), piece.data(), piece.size());
    if (found == nullptr) return false;
    rest.remove_prefix(static_cast<std::size_t>(static_cast<const char*>(found) - rest.data()) + piece.size());
  }
  return true;
}

NamePattern read_name_pattern(const JsonValue& value, const std::string& path, Errors& errors) {
  if (value.is_string()) return {std::string(value.text())};
  NamePattern out;
  if (value.is_object()) {
    JsonFields fields(value, path, errors);
    fields.string("name", out.text);
    fields.finish();
    out.is_exact = true;
    return out;
  }
  errors.add(Error(Code::kSchema, fmt::format("{}: not a string", path))
                 .at({value.offset(), value.offset() + 1})
                 .wanted("a pattern, or {\"name\": \"…\"} for one name exactly")
                 .got(value.found()));
  return out;
}

void write_name_pattern(JsonWriter& json, const NamePattern& pattern) {
  if (pattern.is_exact) {
    json.begin_object(JsonWriter::Lines::kOne).key("name").string(pattern.text).end_object();
  } else {
    json.string(pattern.text);
  }
}

void read_name_fields(JsonFields& fields, NamePattern& out) {
  const auto name = fields.find("name");
  const auto pattern = name ? fields.find("pattern") : fields.require("pattern");
  if (name && pattern) fields.problem(*pattern, "pattern", "given together with a name", "either name or pattern");
  const auto& value = name ? name : pattern;
  if (!value) return;
  if (!value->is_string()) fields.problem(*value, name ? "name" : "pattern", "not a string", "a string");
  out.text = value->text();
  out.is_exact = name.has_value();
}

void write_name_fields(JsonWriter& json, const NamePattern& pattern) {
  json.key(pattern.is_exact ? "name" : "pattern").string(pattern.text);
}

}  // namespace lading
