#include "base/json_reader.h"

#include <fmt/format.h>

// Its exceptions must not cross a room; without them the compiler finds every unchecked result.
#define SIMDJSON_EXCEPTIONS 0
#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/text.h"

namespace lading {

namespace ondemand = simdjson::ondemand;

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

JsonBuffer::JsonBuffer(std::size_t size_bytes)
    : bytes_(size_bytes + simdjson::SIMDJSON_PADDING, '\0'), size_bytes_(size_bytes) {}

JsonBuffer JsonBuffer::copy_of(std::string_view text) {
  JsonBuffer buffer(text.size());
  std::copy(text.begin(), text.end(), buffer.bytes_.begin());
  return buffer;
}

JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument& JsonDocument::operator=(JsonDocument&&) noexcept = default;
JsonDocument::~JsonDocument() = default;

// Walks the parsed text once. Any failure is kept in errors_; a syntax error also ends the walk.
class JsonTreeBuilder {
 public:
  explicit JsonTreeBuilder(const JsonBuffer& buffer) : buffer_(buffer) {}

  Result<JsonDocument, Errors> build() {
    const std::string_view text = buffer_.text();
    if (const auto bad = find_invalid_utf8(text)) {
      return fail(Errors(at(*bad, Error(Code::kJsonUtf8, "invalid UTF-8").wanted("UTF-8 text"))));
    }
    ondemand::parser parser;
    ondemand::document document;
    if (auto error = parser.iterate(text.data(), text.size(), buffer_.capacity_bytes()).get(document)) {
      return fail(Errors(whole_text_error(error)));
    }
    walk_root(document);
    if (!errors_.empty()) return fail(std::move(errors_));
    return std::move(document_);
  }

 private:
  using Node = JsonDocument::Node;

  static Error at(std::size_t offset, Error error) { return std::move(error).at({offset, offset + 1}); }

  // Found by the parser's first pass, which does not say where.
  [[nodiscard]] Error whole_text_error(simdjson::error_code error) const {
    std::string message = "not valid JSON: ";
    switch (error) {
      case simdjson::EMPTY: message += "there is no text"; break;
      case simdjson::UNCLOSED_STRING: message += "a string does not end"; break;
      case simdjson::UNESCAPED_CHARS: message += "a control character stands unescaped in a string"; break;
      case simdjson::MEMALLOC:
        return Error(Code::kOutOfMemory,
                     fmt::format("no memory to parse {} of JSON", human_bytes(buffer_.text().size())));
      default: message += simdjson::error_message(error);
    }
    return Error(Code::kJsonSyntax, message).at({0, buffer_.text().size()});
  }

  [[nodiscard]] std::uint32_t offset_of(const char* place) const {
    return static_cast<std::uint32_t>(place - buffer_.text().data());
  }

  // Ends the walk: what follows a syntax error has no meaning.
  bool syntax_error(std::uint32_t offset, std::string_view what) {
    const auto place = std::min<std::size_t>(offset, buffer_.text().size());
    errors_.add(at(place, Error(Code::kJsonSyntax, fmt::format("not valid JSON: {}", what))));
    return false;
  }

  std::uint32_t add_node(JsonKind kind, std::uint32_t offset, std::string_view text) {
    auto& nodes = document_.nodes_;
    auto& strings = document_.strings_;
    const auto index = static_cast<std::uint32_t>(nodes.size());
    nodes.push_back(
        {offset, static_cast<std::uint32_t>(strings.size()), static_cast<std::uint32_t>(text.size()), index + 1, kind});
    strings += text;
    return index;
  }

  void walk_root(ondemand::document& document) {
    ondemand::value root;
    if (auto error = document.get_value().get(root)) {
      const bool scalar = error == simdjson::SCALAR_DOCUMENT_AS_VALUE;
      syntax_error(0, scalar ? "expected an object or an array" : simdjson::error_message(error));
      return;
    }
    if (!walk(root, 1)) return;
    const char* rest = nullptr;
    if (!document.current_location().get(rest)) syntax_error(offset_of(rest), "more text behind the end of the value");
  }

  // Recursion is bounded by kMaxDepth.
  bool walk(ondemand::value& value, std::size_t depth) {
    const std::string_view token = trimmed_token(value);
    if (token.empty()) return syntax_error(static_cast<std::uint32_t>(buffer_.text().size()), "it ends too early");
    const std::uint32_t offset = offset_of(token.data());
    if (depth > JsonDocument::kMaxDepth) {
      errors_.add(at(offset, Error(Code::kJsonDepth, "JSON is nested too deeply")
                                 .wanted(fmt::format("at most {} levels", JsonDocument::kMaxDepth))));
      return false;
    }
    switch (token.front()) {
      case '{': return walk_object(value, offset, depth);
      case '[': return walk_array(value, offset, depth);
      case '"': return walk_string(value, offset);
      default: return walk_scalar(value, token, offset);
    }
  }

  static std::string_view trimmed_token(ondemand::value& value) {
    std::string_view token = value.raw_json_token();
    const std::size_t last = token.find_last_not_of(" \t\r\n");
    return token.substr(0, last == std::string_view::npos ? 0 : last + 1);
  }

  bool walk_object(ondemand::value& value, std::uint32_t offset, std::size_t depth) {
    const std::uint32_t node = add_node(JsonKind::kObject, offset, {});
    ondemand::object object;
    if (auto error = value.get_object().get(object)) return syntax_error(offset, simdjson::error_message(error));
    std::vector<std::uint32_t> keys;
    for (auto field_or_error : object) {
      ondemand::field field;
      if (auto error = std::move(field_or_error).get(field)) return container_error(error);
      // raw() points behind the opening quote.
      const std::uint32_t key_offset = offset_of(field.key().raw()) - 1;
      std::string_view key;
      if (auto error = field.unescaped_key().get(key)) return string_error(key_offset, error);
      if (find_invalid_utf8(key)) return string_error(key_offset, simdjson::STRING_ERROR);
      keys.push_back(add_node(JsonKind::kString, key_offset, key));
      if (!walk(field.value(), depth + 1)) return false;
    }
    close(node);
    report_duplicates(std::move(keys));
    return true;
  }

  bool walk_array(ondemand::value& value, std::uint32_t offset, std::size_t depth) {
    const std::uint32_t node = add_node(JsonKind::kArray, offset, {});
    ondemand::array array;
    if (auto error = value.get_array().get(array)) return syntax_error(offset, simdjson::error_message(error));
    for (auto element_or_error : array) {
      ondemand::value element;
      if (auto error = element_or_error.get(element)) return container_error(error);
      if (!walk(element, depth + 1)) return false;
    }
    close(node);
    return true;
  }

  bool walk_string(ondemand::value& value, std::uint32_t offset) {
    std::string_view text;
    if (auto error = value.get_string().get(text)) return string_error(offset, error);
    // simdjson 3.0 lets some lone surrogates through; they come out as invalid UTF-8.
    if (find_invalid_utf8(text)) return string_error(offset, simdjson::STRING_ERROR);
    add_node(JsonKind::kString, offset, text);
    return true;
  }

  bool walk_scalar(ondemand::value& value, std::string_view token, std::uint32_t offset) {
    if (token == "true" || token == "false") {
      bool ignored = false;
      if (value.get_bool().get(ignored)) return syntax_error(offset, "expected true or false");
      add_node(ignored ? JsonKind::kTrue : JsonKind::kFalse, offset, token);
      return true;
    }
    if (token == "null") {
      bool is_null = false;
      if (value.is_null().get(is_null) || !is_null) return syntax_error(offset, "expected null");
      add_node(JsonKind::kNull, offset, token);
      return true;
    }
    ondemand::number number;
    if (value.get_number().get(number)) {
      return syntax_error(offset, fmt::format("{} is no JSON value, or a number out of range", quote(token)));
    }
    add_node(JsonKind::kNumber, offset, token);
    return true;
  }

  bool container_error(simdjson::error_code error) {
    const auto end = static_cast<std::uint32_t>(last_node_offset());
    return syntax_error(end, fmt::format("behind the value that starts here: {}", simdjson::error_message(error)));
  }

  bool string_error(std::uint32_t offset, simdjson::error_code error) {
    if (error != simdjson::STRING_ERROR) return syntax_error(offset, simdjson::error_message(error));
    errors_.add(at(offset, Error(Code::kJsonUtf8, "a string holds an invalid escape or half a surrogate pair")
                               .wanted("escapes that stand for Unicode characters")));
    return false;
  }

  [[nodiscard]] std::size_t last_node_offset() const { return document_.nodes_.back().offset; }
  void close(std::uint32_t node) { document_.nodes_[node].after = static_cast<std::uint32_t>(document_.nodes_.size()); }

  [[nodiscard]] std::string_view text_of(std::uint32_t node) const {
    const Node& n = document_.nodes_[node];
    return std::string_view(document_.strings_).substr(n.text_begin, n.text_size);
  }

  // Sorting instead of hashing: no crafted set of keys makes it slow.
  void report_duplicates(std::vector<std::uint32_t> keys) {
    std::stable_sort(keys.begin(), keys.end(), [&](auto a, auto b) { return text_of(a) < text_of(b); });
    for (std::size_t i = 1; i < keys.size(); ++i) {
      if (text_of(keys[i - 1]) != text_of(keys[i])) continue;
      errors_.add(at(
          document_.nodes_[keys[i]].offset,
          Error(Code::kJsonDuplicateKey, fmt::format("the key {} appears twice in one object", quote(text_of(keys[i]))))
              .wanted("each key once")
              .got(fmt::format("it also at byte {} of the text", document_.nodes_[keys[i - 1]].offset))));
    }
  }

  const JsonBuffer& buffer_;
  JsonDocument document_;
  Errors errors_;
};

Result<JsonDocument, Errors> JsonDocument::parse(const JsonBuffer& buffer) {
  if (buffer.text().size() > kMaxBytes) {
    return fail(Errors(Error(Code::kJsonSyntax, "the JSON text is too large")
                           .wanted(fmt::format("at most {} bytes", kMaxBytes))
                           .got(fmt::format("{} bytes", buffer.text().size()))));
  }
  return JsonTreeBuilder(buffer).build();
}

JsonKind JsonValue::kind() const { return document_->nodes_[node_].kind; }
std::uint64_t JsonValue::offset() const { return document_->nodes_[node_].offset; }

std::string_view JsonValue::text() const {
  const auto& node = document_->nodes_[node_];
  return std::string_view(document_->strings_).substr(node.text_begin, node.text_size);
}

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
    default: return escape(text());
  }
}

JsonValue::Iterator JsonValue::begin() const { return {document_, node_ + 1, is_object()}; }
JsonValue::Iterator JsonValue::end() const { return {document_, document_->nodes_[node_].after, is_object()}; }

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
  node_ = document_->nodes_[value].after;
  return *this;
}

}  // namespace lading
