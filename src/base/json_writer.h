// Writes JSON, indented, in the order of the calls: the same calls give the same bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lading {

class JsonWriter {
 public:
  JsonWriter& begin_object();
  JsonWriter& end_object();
  JsonWriter& begin_array();
  JsonWriter& end_array();
  JsonWriter& key(std::string_view key);
  JsonWriter& string(std::string_view text);
  JsonWriter& number(std::uint64_t number);
  JsonWriter& boolean(bool value);
  JsonWriter& null();

  /// The finished text, with a newline at the end. Everything that was begun must be ended.
  [[nodiscard]] std::string take();

 private:
  void before_value();
  void new_line();
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  void append_quoted(std::string_view text);

  std::string out_;
  std::vector<bool> has_members_;
  bool after_key_ = false;
};

}  // namespace lading
