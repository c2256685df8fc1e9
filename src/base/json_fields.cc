#include "base/json_fields.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace lading {

JsonFields::JsonFields(const JsonValue& value, std::string path, Errors& errors)
    : offset_(value.offset()), path_(std::move(path)), errors_(errors) {
  if (value.is_object()) {
    object_ = value;
  } else {
    errors_.add(Error(Code::kSchema, fmt::format("{}: not an object", path_))
                    .at({offset_, offset_ + 1})
                    .wanted("an object")
                    .got(value.found()));
  }
}

std::string JsonFields::path_of(std::string_view key) const { return fmt::format("{}.{}", path_, escape(key)); }

void JsonFields::problem(const JsonValue& value, std::string_view key, std::string message, std::string expected) {
  errors_.add(Error(Code::kSchema, fmt::format("{}: {}", path_of(key), message))
                  .at({value.offset(), value.offset() + 1})
                  .wanted(std::move(expected))
                  .got(value.found()));
}

std::optional<JsonValue> JsonFields::find(std::string_view key) {
  known_.push_back(key);
  return object_ ? object_->find(key) : std::nullopt;
}

std::optional<JsonValue> JsonFields::require(std::string_view key) {
  auto value = find(key);
  if (!value && object_) {
    errors_.add(Error(Code::kSchema, fmt::format("{}: the field is missing", path_of(key))).at({offset_, offset_ + 1}));
  }
  return value;
}

void JsonFields::read_string(const JsonValue& value, std::string_view key, std::string& out) {
  if (value.is_string()) {
    out = value.text();
  } else {
    problem(value, key, "not a string", "a string");
  }
}

void JsonFields::read_uint64(const JsonValue& value, std::string_view key, std::uint64_t& out) {
  if (const auto number = value.as_uint64()) {
    out = *number;
  } else {
    problem(value, key, "not a whole number", "a whole number from 0 to 2^64 - 1");
  }
}

void JsonFields::read_boolean(const JsonValue& value, std::string_view key, bool& out) {
  if (value.kind() == JsonKind::kTrue || value.kind() == JsonKind::kFalse) {
    out = value.kind() == JsonKind::kTrue;
  } else {
    problem(value, key, "not a boolean", "true or false");
  }
}

std::optional<DType> JsonFields::read_dtype(const JsonValue& value, std::string_view key) {
  const auto dtype = value.is_string() ? dtype_from_name(value.text()) : std::nullopt;
  if (!dtype) problem(value, key, "not a dtype", "a name as in safetensors, such as \"BF16\"");
  return dtype;
}

void JsonFields::read_each(const JsonValue& value, std::string_view key,
                           const std::function<void(const JsonValue&, const std::string&)>& read) {
  if (!value.is_array()) {
    problem(value, key, "not an array", "an array");
    return;
  }
  std::size_t i = 0;
  for (const JsonMember element : value) read(element.value, fmt::format("{}[{}]", path_of(key), i++));
}

void JsonFields::read_strings(const JsonValue& value, std::string_view key, std::vector<std::string>& out) {
  std::vector<std::string> strings;
  read_each(value, key, [&](const JsonValue& element, const std::string& path) {
    if (element.is_string()) {
      strings.emplace_back(element.text());
    } else {
      errors_.add(Error(Code::kSchema, fmt::format("{}: not a string", path))
                      .at({element.offset(), element.offset() + 1})
                      .wanted("a string")
                      .got(element.found()));
    }
  });
  out = std::move(strings);
}

void JsonFields::string(std::string_view key, std::string& out) {
  if (const auto value = require(key)) read_string(*value, key, out);
}
void JsonFields::uint64(std::string_view key, std::uint64_t& out) {
  if (const auto value = require(key)) read_uint64(*value, key, out);
}
void JsonFields::boolean(std::string_view key, bool& out) {
  if (const auto value = require(key)) read_boolean(*value, key, out);
}
void JsonFields::strings(std::string_view key, std::vector<std::string>& out) {
  if (const auto value = require(key)) read_strings(*value, key, out);
}
void JsonFields::dtype(std::string_view key, DType& out) {
  if (const auto value = require(key)) out = read_dtype(*value, key).value_or(out);
}

void JsonFields::shape(std::string_view key, Shape& out) {
  const auto value = require(key);
  if (!value) return;
  std::vector<std::uint64_t> dims;
  bool good = value->is_array();
  read_each(*value, key, [&](const JsonValue& element, const std::string&) {
    const auto dim = element.as_uint64();
    good = good && dim.has_value();
    dims.push_back(dim.value_or(0));
  });
  Shape shape(std::move(dims));
  if (!value->is_array()) return;
  if (!good || shape.rank() > 64 || !shape.num_elems()) {
    problem(*value, key, "not a shape", "at most 64 sizes whose product is below 2^63");
    return;
  }
  out = std::move(shape);
}

void JsonFields::optional_string(std::string_view key, std::string& out) {
  if (const auto value = find(key)) read_string(*value, key, out);
}
void JsonFields::optional_uint64(std::string_view key, std::uint64_t& out) {
  if (const auto value = find(key)) read_uint64(*value, key, out);
}
void JsonFields::optional_boolean(std::string_view key, bool& out) {
  if (const auto value = find(key)) read_boolean(*value, key, out);
}
void JsonFields::optional_strings(std::string_view key, std::vector<std::string>& out) {
  if (const auto value = find(key)) read_strings(*value, key, out);
}
void JsonFields::optional_dtype(std::string_view key, std::optional<DType>& out) {
  if (const auto value = find(key)) {
    if (const auto dtype = read_dtype(*value, key)) out = dtype;
  }
}

void JsonFields::each(std::string_view key, const std::function<void(const JsonValue&, const std::string&)>& read) {
  if (const auto value = require(key)) read_each(*value, key, read);
}
void JsonFields::optional_each(std::string_view key,
                               const std::function<void(const JsonValue&, const std::string&)>& read) {
  if (const auto value = find(key)) read_each(*value, key, read);
}

void JsonFields::finish() {
  if (!object_) return;
  std::vector<std::string_view> once;  // a reader may ask for a field twice
  for (const JsonMember member : *object_) {
    if (std::find(known_.begin(), known_.end(), member.key) != known_.end()) continue;
    if (once.empty()) {
      for (const std::string_view key : known_) {
        if (std::find(once.begin(), once.end(), key) == once.end()) once.push_back(key);
      }
    }
    errors_.add(Error(Code::kSchema, fmt::format("{}: unknown field", path_of(member.key)))
                    .at({member.key_offset, member.key_offset + 1})
                    .wanted(fmt::format("only {}", fmt::join(once, ", "))));
  }
}

JsonFields begin_document(const JsonDocument& document, std::string_view schema, Errors& errors) {
  JsonFields fields(document.root(), "$", errors);
  if (const auto value = fields.require("schema"); value && value->text() != schema) {
    fields.problem(*value, "schema", "not the expected schema, or not the expected version of it", std::string(schema));
  }
  return fields;
}

}  // namespace lading
