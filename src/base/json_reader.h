// Strict JSON: every byte is checked, every key is unique in its object, every value knows its offset.
//
// simdjson does the parsing; it keeps duplicate keys and leaves skipped values unchecked, so this
// file visits everything once and builds a compact tree. Duplicates are found after unescaping, so
// that "a" and "\u0061" are the same key. Depth is limited; no input can exhaust the stack. Whoever reads texts of
// strangers limits how much they may hold: that is counted before anything is built. The tree takes 8 bytes for a key
// or a value beside the text, and the parser as many while it works. A JsonDocument is immutable and safe to read from
// many threads. JsonValue borrows from it.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lading/result.h"

namespace lading {

class JsonDocument;

enum class JsonKind : std::uint8_t { kObject, kArray, kString, kNumber, kTrue, kFalse, kNull };

/// "an object", "a string": for error messages.
[[nodiscard]] std::string_view describe(JsonKind kind);

class JsonValue {
 public:
  [[nodiscard]] JsonKind kind() const;
  /// Where its first byte stands in the text that was parsed.
  [[nodiscard]] std::uint64_t offset() const;
  /// The unescaped string, or a number's or literal's own characters; empty for containers.
  [[nodiscard]] std::string_view text() const;
  /// Only digits, no sign, fraction or exponent, and at most 2^64 - 1.
  [[nodiscard]] std::optional<std::uint64_t> as_uint64() const;
  [[nodiscard]] bool is_string() const { return kind() == JsonKind::kString; }
  [[nodiscard]] bool is_object() const { return kind() == JsonKind::kObject; }
  [[nodiscard]] bool is_array() const { return kind() == JsonKind::kArray; }
  /// What stands there, short enough for a message.
  [[nodiscard]] std::string found() const;

  /// The members of an object, or of an array, in file order. Empty for scalars.
  class Iterator;
  [[nodiscard]] Iterator begin() const;
  [[nodiscard]] Iterator end() const;
  /// How many members there are; walks over them.
  [[nodiscard]] std::size_t size() const;
  /// The member of an object with this key.
  [[nodiscard]] std::optional<JsonValue> find(std::string_view key) const;

 private:
  friend class JsonDocument;
  friend class Iterator;
  JsonValue(const JsonDocument* document, std::uint32_t node) : document_(document), node_(node) {}

  const JsonDocument* document_;
  std::uint32_t node_;
};

/// A member: its key (empty in arrays), where the key stands, and the value.
struct JsonMember {
  std::string_view key;
  std::uint64_t key_offset = 0;
  JsonValue value;
};

class JsonValue::Iterator {
 public:
  JsonMember operator*() const;
  Iterator& operator++();
  friend bool operator==(const Iterator& a, const Iterator& b) { return a.node_ == b.node_; }

 private:
  friend class JsonValue;
  Iterator(const JsonDocument* document, std::uint32_t node, bool keyed)
      : document_(document), node_(node), keyed_(keyed) {}

  const JsonDocument* document_;
  std::uint32_t node_;
  bool keyed_;
};

/// Text with room behind it for the parser to read ahead. Filled by the caller, then handed over.
class JsonBuffer {
 public:
  explicit JsonBuffer(std::size_t size_bytes);
  [[nodiscard]] char* data() { return bytes_.data(); }
  [[nodiscard]] std::string_view text() const { return {bytes_.data(), size_bytes_}; }
  [[nodiscard]] std::size_t capacity_bytes() const { return bytes_.size(); }
  static JsonBuffer copy_of(std::string_view text);

 private:
  std::vector<char> bytes_;
  std::size_t size_bytes_;
};

/// A key that an object has twice.
struct JsonDuplicate {
  std::shared_ptr<const std::vector<std::string>> path;  ///< the keys that lead to the object; one for all of them
  std::string key;
  std::uint64_t offset = 0;        ///< of the second
  std::uint64_t first_offset = 0;  ///< of the first

  /// With offsets into the text; the caller adds file and base offset.
  [[nodiscard]] Error error(std::uint64_t base_offset) const;
};

struct JsonDuplicates {
  std::vector<JsonDuplicate> list;  ///< at most Errors::kMaxListed
  std::uint64_t not_listed = 0;
};

/// A syntax error, and the keys that lead to where it is.
struct JsonFault {
  Error error;
  std::vector<std::string> path;
};

/// How much a text may hold. Texts that people and programs write have more than kBytesPerValue bytes for each key and
/// value; one that has fewer, and many values, was written to take memory.
struct JsonLimits {
  static constexpr std::size_t kBytesPerValue = 5;

  std::size_t max_members = std::numeric_limits<std::size_t>::max();  ///< of one object or array
  /// Keys and values, all together; and one more for every kBytesPerValue bytes of the text.
  std::size_t max_values = std::numeric_limits<std::size_t>::max();
  Code code = Code::kSchema;  ///< of the error if it holds more
};

class JsonDocument {
 public:
  /// Errors carry offsets into the text as byte ranges; the caller adds file and base offset.
  /// All duplicate keys are reported; a syntax error ends the search. The document keeps the text.
  static Result<JsonDocument, Errors> parse(JsonBuffer buffer, const JsonLimits& limits = {});

  /// For readers that say more about duplicates, and want to find other faults beside them. The document
  /// has the keys twice; whoever calls this must refuse if there are any. It borrows the buffer.
  static Result<JsonDocument, JsonFault> parse_keeping_duplicates(const JsonBuffer& buffer, JsonDuplicates& duplicates,
                                                                  const JsonLimits& limits = {});
  static Result<JsonDocument, JsonFault> parse_keeping_duplicates(JsonBuffer&& buffer, JsonDuplicates& duplicates,
                                                                  const JsonLimits& limits = {}) = delete;

  JsonDocument(JsonDocument&&) noexcept;
  JsonDocument& operator=(JsonDocument&&) noexcept;
  JsonDocument(const JsonDocument&) = delete;
  JsonDocument& operator=(const JsonDocument&) = delete;
  ~JsonDocument();

  [[nodiscard]] JsonValue root() const { return {this, 0}; }

  static constexpr std::size_t kMaxDepth = 64;
  /// Offsets are 32 bits wide.
  static constexpr std::size_t kMaxBytes = 0xFFFF'FF00;

 private:
  friend class JsonValue;
  friend class JsonValue::Iterator;
  friend class JsonTreeBuilder;

  // A key is a string node that stands before its value. The text at `offset` says what kind a node is.
  struct Node {
    std::uint32_t offset;
    /// Of a container: the node behind its members. Of a string: how many characters follow the quote, or, with
    /// kEscaped, a place in escaped_. Of others: how many characters it has.
    std::uint32_t link;
  };
  struct Escaped {
    std::uint32_t begin;  // in strings_
    std::uint32_t size;
  };
  static constexpr std::uint32_t kEscaped = std::uint32_t{1} << 31;

  JsonDocument() = default;
  [[nodiscard]] JsonKind kind_of(std::uint32_t node) const;
  [[nodiscard]] std::string_view text_of(std::uint32_t node) const;
  [[nodiscard]] std::uint32_t behind(std::uint32_t node) const;

  const char* text_ = nullptr;       // of a buffer that is owned_, or the caller's
  std::optional<JsonBuffer> owned_;  // its bytes stay where they are when it moves
  std::vector<Node> nodes_;
  std::vector<Escaped> escaped_;
  std::string strings_;  // those that had escapes, without them
};

}  // namespace lading
