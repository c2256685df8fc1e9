#include "base/json_reader.h"

#include <fmt/format.h>

// Its exceptions must not cross a room; without them the compiler finds every unchecked result.
#define SIMDJSON_EXCEPTIONS 0
#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "base/json_text_count.h"
#include "base/text.h"

namespace lading {

namespace ondemand = simdjson::ondemand;

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

namespace {

// RFC 8259: -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?
bool is_json_number(std::string_view text) {
  const auto digits = [&] {
    std::size_t count = 0;
    while (count < text.size() && text[count] >= '0' && text[count] <= '9') ++count;
    text.remove_prefix(count);
    return count;
  };
  if (text.starts_with('-')) text.remove_prefix(1);
  const bool zero = text.starts_with('0');
  const std::size_t whole = digits();
  if (whole == 0 || (zero && whole > 1)) return false;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    if (digits() == 0) return false;
  }
  if (text.starts_with('e') || text.starts_with('E')) {
    text.remove_prefix(1);
    if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
    if (digits() == 0) return false;
  }
  return text.empty();
}

// The first control character in a string, or the quote of a string that does not end; else 0.
std::size_t place_of_string_fault(std::string_view text) {
  std::optional<std::size_t> opened;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (opened && static_cast<unsigned char>(text[i]) < 0x20) return i;
    if (opened && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      opened = opened ? std::nullopt : std::optional(i);
    }
  }
  return opened.value_or(0);
}

std::string_view trimmed(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace

// Walks the parsed text once. A syntax error ends the walk; duplicates are collected.
class JsonTreeBuilder {
 public:
  JsonTreeBuilder(const JsonBuffer& buffer, JsonDuplicates& duplicates) : buffer_(buffer), duplicates_(duplicates) {
    document_.text_ = buffer.text().data();
  }

  Result<JsonDocument, JsonFault> build(const JsonLimits& limits) {
    const std::string_view text = buffer_.text();
    TextCount count(text, limits);
    if (const auto excess = count.find_excess()) return fail(JsonFault{at(*excess, too_much(limits)), {}});
    // simdjson tells quickly whether; only the slower search tells where.
    if (!simdjson::validate_utf8(text.data(), text.size())) {
      const std::size_t bad = find_invalid_utf8(text).value_or(0);
      return fail(JsonFault{at(bad, Error(Code::kJsonUtf8, "invalid UTF-8").wanted("UTF-8 text")), {}});
    }
    document_.nodes_.reserve(count.values());
    ondemand::parser parser;
    ondemand::document document;
    if (auto error = parser.iterate(text.data(), text.size(), buffer_.capacity_bytes()).get(document)) {
      return fail(JsonFault{whole_text_error(error), {}});
    }
    parsed_ = &document;
    if (!walk_root(document)) return fail(JsonFault{*std::move(fault_), path()});
    return std::move(document_);
  }

 private:
  static Error at(std::size_t offset, Error error) { return std::move(error).at({offset, offset + 1}); }

  [[nodiscard]] Error too_much(const JsonLimits& limits) const {
    return Error(limits.code, "the JSON text is too large to parse")
        .wanted(fmt::format("at most {} members of an object or array, and {} keys and values for a text of this size",
                            with_commas(limits.max_members),
                            with_commas(limits.max_values + buffer_.text().size() / JsonLimits::kBytesPerValue)))
        .try_this(
            "Check that this is the right file. If it is, please report it: no known file of this kind is so large.");
  }

  // Found by the parser's first pass, which does not say where.
  [[nodiscard]] Error whole_text_error(simdjson::error_code error) const {
    std::string message = "not valid JSON: ";
    switch (error) {
      case simdjson::EMPTY: message += "the text is empty"; break;
      case simdjson::UNCLOSED_STRING: message += "a string has no closing quote"; break;
      case simdjson::UNESCAPED_CHARS: message += "a string contains an unescaped control character"; break;
      case simdjson::MEMALLOC:
        return Error(Code::kOutOfMemory,
                     fmt::format("not enough memory to parse {} of JSON", human_bytes(buffer_.text().size())));
      default: message += simdjson::error_message(error);
    }
    const std::size_t place = place_of_string_fault(buffer_.text());
    return Error(Code::kJsonSyntax, message).at({place, place + 1});
  }

  [[nodiscard]] std::uint32_t offset_of(const char* place) const {
    return static_cast<std::uint32_t>(place - buffer_.text().data());
  }

  // Ends the walk: what follows a syntax error has no meaning.
  bool stop(std::uint32_t offset, Error error) {
    fault_ = at(std::min<std::size_t>(offset, buffer_.text().size()), std::move(error));
    return false;
  }
  bool syntax_error(std::uint32_t offset, std::string_view what) {
    return stop(offset, Error(Code::kJsonSyntax, fmt::format("not valid JSON: {}", what)));
  }

  std::uint32_t add_node(std::uint32_t offset, std::size_t link) {
    const auto index = static_cast<std::uint32_t>(document_.nodes_.size());
    document_.nodes_.push_back({offset, static_cast<std::uint32_t>(link)});
    return index;
  }

  // Most strings have no escapes and stay where they are. `unescape` gives those that have some.
  template <class Unescape>
  bool add_string(std::uint32_t offset, const Unescape& unescape) {
    const std::string_view rest = buffer_.text().substr(offset + 1);
    std::size_t size = 0;
    while (size < rest.size() && rest[size] != '"' && rest[size] != '\\') ++size;
    if (size < rest.size() && rest[size] == '"' && size < JsonDocument::kEscaped) {
      add_node(offset, size);
      return true;
    }
    std::string_view text;
    if (auto error = unescape().get(text)) return string_error(offset, error);
    auto& escaped = document_.escaped_;
    add_node(offset, JsonDocument::kEscaped | escaped.size());
    escaped.push_back({static_cast<std::uint32_t>(document_.strings_.size()), static_cast<std::uint32_t>(text.size())});
    document_.strings_ += text;
    return true;
  }

  bool walk_root(ondemand::document& document) {
    ondemand::value root;
    const simdjson::error_code error = document.get_value().get(root);
    if (error == simdjson::SCALAR_DOCUMENT_AS_VALUE) return walk_scalar_root(document);
    if (error != simdjson::SUCCESS) return syntax_error(0, simdjson::error_message(error));
    if (!walk(root, 1)) return false;
    return check_at_end(document);
  }

  bool walk_scalar_root(ondemand::document& document) {
    const std::string_view token = trimmed(buffer_.text());
    const std::uint32_t offset = offset_of(token.data());
    if (token.front() != '"') return walk_scalar(token, offset);
    const auto unescaped = document.get_string();  // also steps over it
    return add_string(offset, [&] { return unescaped; }) && check_at_end(document);
  }

  bool check_at_end(ondemand::document& document) {
    const char* rest = nullptr;
    if (document.current_location().get(rest)) return true;
    return syntax_error(offset_of(rest), "more text after the end of the value");
  }

  // Recursion is bounded by kMaxDepth.
  bool walk(ondemand::value& value, std::size_t depth) {
    const std::string_view token = trimmed(value.raw_json_token());
    if (token.empty())
      return syntax_error(static_cast<std::uint32_t>(buffer_.text().size()), "the text ends too early");
    const std::uint32_t offset = offset_of(token.data());
    const bool container = token.front() == '{' || token.front() == '[';
    if (container && depth > JsonDocument::kMaxDepth) {
      return stop(offset, Error(Code::kJsonDepth, "JSON is nested too deeply")
                              .wanted(fmt::format("at most {} levels", JsonDocument::kMaxDepth)));
    }
    switch (token.front()) {
      case '{': return walk_object(value, offset, depth);
      case '[': return walk_array(value, offset, depth);
      case '"': return walk_string(value, offset);
      default: return walk_scalar(token, offset);
    }
  }

  bool walk_object(ondemand::value& value, std::uint32_t offset, std::size_t depth) {
    const std::uint32_t node = add_node(offset, 0);
    ondemand::object object;
    if (auto error = value.get_object().get(object)) return syntax_error(offset, simdjson::error_message(error));
    const std::size_t first_key = keys_.size();
    for (auto field_or_error : object) {
      ondemand::field field;
      if (auto error = std::move(field_or_error).get(field)) return container_error(error);
      // raw() points behind the opening quote.
      const std::uint32_t key_offset = offset_of(field.key().raw()) - 1;
      const auto node_of_key = static_cast<std::uint32_t>(document_.nodes_.size());
      if (!add_string(key_offset, [&] { return field.unescaped_key(); })) return false;
      path_.push_back(node_of_key);
      keys_.push_back(node_of_key);
      if (!walk(field.value(), depth + 1)) return false;
      path_.pop_back();
    }
    close(node);
    collect_duplicates(std::span(keys_).subspan(first_key));
    keys_.resize(first_key);
    return true;
  }

  bool walk_array(ondemand::value& value, std::uint32_t offset, std::size_t depth) {
    const std::uint32_t node = add_node(offset, 0);
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
    // Stepped over here: of a string that was not read, the parser would take `"a":1` for a key with its value.
    if (auto error = value.get_raw_json_string().error()) return syntax_error(offset, simdjson::error_message(error));
    return add_string(offset, [&] { return value.get_string(); });
  }

  // The iterator steps over scalars by itself. Numbers of any size are JSON; whoever wants one decides
  // whether it fits.
  bool walk_scalar(std::string_view token, std::uint32_t offset) {
    if (token != "true" && token != "false" && token != "null" && !is_json_number(token)) {
      return syntax_error(offset, fmt::format("{} is not a JSON value", quote(token)));
    }
    add_node(offset, token.size());
    return true;
  }

  // The parser stands behind the member that it read last, at what should have been "," or the end.
  bool container_error(simdjson::error_code error) {
    const char* place = nullptr;
    const bool known = parsed_->current_location().get(place) == simdjson::SUCCESS;
    const std::size_t end = buffer_.text().size();
    return syntax_error(known ? offset_of(place) : static_cast<std::uint32_t>(end), simdjson::error_message(error));
  }

  bool string_error(std::uint32_t offset, simdjson::error_code error) {
    if (error != simdjson::STRING_ERROR) return syntax_error(offset, simdjson::error_message(error));
    return stop(offset, Error(Code::kJsonUtf8, "a string contains an invalid escape or half a surrogate pair")
                            .wanted("escapes of Unicode characters"));
  }

  void close(std::uint32_t node) { document_.nodes_[node].link = static_cast<std::uint32_t>(document_.nodes_.size()); }

  [[nodiscard]] std::string_view text_of(std::uint32_t node) const { return document_.text_of(node); }

  [[nodiscard]] std::vector<std::string> path() const {
    std::vector<std::string> keys;
    for (const std::uint32_t node : path_) keys.emplace_back(text_of(node));
    return keys;
  }

  // Sorting instead of hashing: no crafted set of keys makes it slow. Nodes are numbered in the order of the text.
  void collect_duplicates(std::span<std::uint32_t> keys) {
    const auto before = [&](std::uint32_t a, std::uint32_t b) {
      const int order = text_of(a).compare(text_of(b));
      return order != 0 ? order < 0 : a < b;
    };
    if (!std::is_sorted(keys.begin(), keys.end(), before)) std::sort(keys.begin(), keys.end(), before);
    for (std::size_t i = 1; i < keys.size(); ++i) {
      if (text_of(keys[i - 1]) != text_of(keys[i])) continue;
      if (duplicates_.list.size() == Errors::kMaxListed) {
        ++duplicates_.not_listed;
        continue;
      }
      // Objects under one key, and faults of one object, have one path between them.
      if (shared_path_ == nullptr || shared_path_of_ != path_) {
        shared_path_of_ = path_;
        shared_path_ = std::make_shared<const std::vector<std::string>>(path());
      }
      duplicates_.list.push_back({shared_path_, std::string(text_of(keys[i])), document_.nodes_[keys[i]].offset,
                                  document_.nodes_[keys[i - 1]].offset});
    }
  }

  const JsonBuffer& buffer_;
  JsonDuplicates& duplicates_;
  JsonDocument document_;
  std::vector<std::uint32_t> path_;  // the key nodes that lead to here
  std::vector<std::uint32_t> keys_;  // the key nodes of the objects that are open, one object behind the other
  ondemand::document* parsed_ = nullptr;
  std::vector<std::uint32_t> shared_path_of_;
  std::shared_ptr<const std::vector<std::string>> shared_path_;
  std::optional<Error> fault_;
};

Error JsonDuplicate::error(std::uint64_t base_offset) const {
  return Error(Code::kJsonDuplicateKey, fmt::format("the key {} appears twice in one object", quote(key)))
      .at({base_offset + offset, base_offset + offset + 1})
      .wanted("each key once")
      .got(fmt::format("a second one at byte {}", base_offset + first_offset));
}

Result<JsonDocument, JsonFault> JsonDocument::parse_keeping_duplicates(const JsonBuffer& buffer,
                                                                       JsonDuplicates& duplicates,
                                                                       const JsonLimits& limits) {
  if (buffer.text().size() > kMaxBytes) {
    return fail(JsonFault{Error(Code::kJsonSyntax, "the JSON text is too large")
                              .wanted(fmt::format("at most {} bytes", kMaxBytes))
                              .got(fmt::format("{} bytes", buffer.text().size())),
                          {}});
  }
  return JsonTreeBuilder(buffer, duplicates).build(limits);
}

Result<JsonDocument, Errors> JsonDocument::parse(JsonBuffer buffer, const JsonLimits& limits) {
  JsonDuplicates duplicates;
  auto document = parse_keeping_duplicates(buffer, duplicates, limits);
  if (!document) return fail(Errors(std::move(document).error().error));
  Errors errors;
  for (const JsonDuplicate& duplicate : duplicates.list) errors.add(duplicate.error(0));
  errors.count_not_listed(duplicates.not_listed);
  if (!errors.empty()) return fail(std::move(errors));
  document->owned_ = std::move(buffer);
  document->text_ = document->owned_->text().data();
  return *std::move(document);
}

}  // namespace lading
