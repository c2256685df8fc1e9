// Reading a JSON object against a schema: every field is asked for by name, and what nobody asked for
// is refused. Each problem says where, as a path ("$.tensors[3].shape") and a byte offset.
//
//   JsonFields fields(value, "$", errors);
//   fields.string("name", out.name);
//   fields.optional_uint64("seed", out.seed);
//   fields.finish();                        // reports unknown fields
//
// A problem is added to `errors` and the output keeps its old value, so that reading goes on and finds
// the next one. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_reader.h"
#include "lading/dtype.h"
#include "lading/result.h"
#include "lading/shape.h"

namespace lading {

class JsonFields {
 public:
  /// Reports a problem if `value` is not an object; every later call is then quiet.
  JsonFields(const JsonValue& value, std::string path, Errors& errors);

  /// Marks the field as known. Nothing if it is not there.
  std::optional<JsonValue> find(std::string_view key);
  /// The same, and a problem if it is not there.
  std::optional<JsonValue> require(std::string_view key);

  void string(std::string_view key, std::string& out);
  void uint64(std::string_view key, std::uint64_t& out);
  void boolean(std::string_view key, bool& out);
  void dtype(std::string_view key, DType& out);
  void shape(std::string_view key, Shape& out);
  void strings(std::string_view key, std::vector<std::string>& out);

  void optional_string(std::string_view key, std::string& out);
  void optional_uint64(std::string_view key, std::uint64_t& out);
  void optional_boolean(std::string_view key, bool& out);
  void optional_dtype(std::string_view key, std::optional<DType>& out);
  void optional_strings(std::string_view key, std::vector<std::string>& out);

  /// One of a fixed set of words, such as {"keep", Ties::kKeep}.
  template <class Enum, std::size_t N>
  void word(std::string_view key, const std::array<std::pair<std::string_view, Enum>, N>& words, Enum& out) {
    if (const auto value = require(key)) read_word(*value, key, words, out);
  }
  template <class Enum, std::size_t N>
  void optional_word(std::string_view key, const std::array<std::pair<std::string_view, Enum>, N>& words, Enum& out) {
    if (const auto value = find(key)) read_word(*value, key, words, out);
  }

  /// Calls `read(element, path)` for each element of an array.
  void each(std::string_view key, const std::function<void(const JsonValue&, const std::string&)>& read);
  void optional_each(std::string_view key, const std::function<void(const JsonValue&, const std::string&)>& read);

  /// For problems that only the caller can see.
  void problem(const JsonValue& value, std::string_view key, std::string message, std::string expected);
  [[nodiscard]] std::string path_of(std::string_view key) const;
  [[nodiscard]] const std::string& path() const { return path_; }

  void finish();

 private:
  template <class Enum, std::size_t N>
  void read_word(const JsonValue& value, std::string_view key,
                 const std::array<std::pair<std::string_view, Enum>, N>& words, Enum& out) {
    std::string allowed;
    for (const auto& [text, meaning] : words) {
      if (value.is_string() && value.text() == text) {
        out = meaning;
        return;
      }
      allowed += (allowed.empty() ? "" : ", ") + std::string(text);
    }
    problem(value, key, "not one of the allowed words", allowed);
  }

  void read_string(const JsonValue& value, std::string_view key, std::string& out);
  void read_uint64(const JsonValue& value, std::string_view key, std::uint64_t& out);
  void read_boolean(const JsonValue& value, std::string_view key, bool& out);
  void read_strings(const JsonValue& value, std::string_view key, std::vector<std::string>& out);
  std::optional<DType> read_dtype(const JsonValue& value, std::string_view key);
  void read_each(const JsonValue& value, std::string_view key,
                 const std::function<void(const JsonValue&, const std::string&)>& read);

  std::optional<JsonValue> object_;
  std::uint64_t offset_;
  std::string path_;
  Errors& errors_;
  std::vector<std::string_view> known_;
};

/// The same table the other way, for writing.
template <class Enum, std::size_t N>
std::string_view word_of(const std::array<std::pair<std::string_view, Enum>, N>& words, Enum meaning) {
  for (const auto& [text, other] : words) {
    if (other == meaning) return text;
  }
  LADING_CHECK(false);
  return "";
}

/// The document's "schema" field must be exactly `schema`. Returns the fields, with it marked as known.
JsonFields begin_document(const JsonDocument& document, std::string_view schema, Errors& errors);

}  // namespace lading
