// What a JsonDocument says of its values, once it is parsed (json_reader.cc).
#include <fmt/format.h>

#include <charconv>

#include "base/json_reader.h"
#include "base/text.h"

namespace lading {

std::string_view describe(JsonKind kind) {
  switch (kind) {
    case JsonKind::kObject: return "an object";
    case JsonKind::kArray: return "an array";
    case JsonKind::kString: return "a string";
    case JsonKind::kNumber: return "a number";
    case JsonKind::kTrue:
    case JsonKind::kFalse: return "a boolean";
    case JsonKind::kNull: return "null";
  }
  return "a value";
}

JsonKind JsonDocument::kind_of(std::uint32_t node) const {
  switch (text_[nodes_[node].offset]) {
    case '{': return JsonKind::kObject;
    case '[': return JsonKind::kArray;
    case '"': return JsonKind::kString;
    case 't': return JsonKind::kTrue;
    case 'f': return JsonKind::kFalse;
    case 'n': return JsonKind::kNull;
    default: return JsonKind::kNumber;
  }
}

std::string_view JsonDocument::text_of(std::uint32_t node) const {
  const Node& n = nodes_[node];
  switch (text_[n.offset]) {
    case '{':
    case '[': return {};
    case '"': break;
    default: return {text_ + n.offset, n.link};
  }
  if (n.link < kEscaped) return {text_ + n.offset + 1, n.link};
  const Escaped& escaped = escaped_[n.link - kEscaped];
  return std::string_view(strings_).substr(escaped.begin, escaped.size);
}

std::uint32_t JsonDocument::behind(std::uint32_t node) const {
  const char first = text_[nodes_[node].offset];
  return first == '{' || first == '[' ? nodes_[node].link : node + 1;
}

JsonKind JsonValue::kind() const { return document_->kind_of(node_); }
std::uint64_t JsonValue::offset() const { return document_->nodes_[node_].offset; }
std::string_view JsonValue::text() const { return document_->text_of(node_); }

std::optional<std::uint64_t> JsonValue::as_uint64() const {
  if (kind() != JsonKind::kNumber) return std::nullopt;
  const std::string_view digits = text();
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

std::string JsonValue::found() const {
  switch (kind()) {
    case JsonKind::kObject:
    case JsonKind::kArray: return std::string(describe(kind()));
    case JsonKind::kString: return fmt::format("the string {}", quote(text()));
    default: return shorten(text());
  }
}

JsonValue::Iterator JsonValue::begin() const { return {document_, node_ + 1, is_object()}; }
JsonValue::Iterator JsonValue::end() const { return {document_, document_->behind(node_), is_object()}; }

std::size_t JsonValue::size() const {
  std::size_t count = 0;
  for (auto it = begin(); !(it == end()); ++it) ++count;
  return count;
}

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
  if (!is_object()) return std::nullopt;
  for (const JsonMember member : *this) {
    if (member.key == key) return member.value;
  }
  return std::nullopt;
}

JsonMember JsonValue::Iterator::operator*() const {
  if (!keyed_) return {{}, 0, {document_, node_}};
  const JsonValue key(document_, node_);
  return {key.text(), key.offset(), {document_, node_ + 1}};
}

JsonValue::Iterator& JsonValue::Iterator::operator++() {
  const std::uint32_t value = keyed_ ? node_ + 1 : node_;
  node_ = document_->behind(value);
  return *this;
}

}  // namespace lading
