// Writes JSON, indented, in the order of the calls: the same calls give the same bytes.
//
// A container that is begun with kOne stands on one line with all that is in it.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lading {

class JsonWriter {
 public:
  enum class Lines : std::uint8_t { kMany, kOne };

  JsonWriter& begin_object(Lines lines = Lines::kMany);
  JsonWriter& end_object();
  JsonWriter& begin_array(Lines lines = Lines::kMany);
  JsonWriter& end_array();
  JsonWriter& key(std::string_view key);
  JsonWriter& string(std::string_view text);
  JsonWriter& number(std::uint64_t number);
  /// The shortest text that reads back as the same bits. JSON has no infinities: they come as strings.
  template <std::floating_point Number>
  JsonWriter& number(Number number) {
    return fraction(number);
  }
  /// A number in somebody else's JSON text, as it stands there.
  JsonWriter& literal(std::string_view number);
  JsonWriter& boolean(bool value);
  JsonWriter& null();

  /// The finished text, with a newline at the end. Everything that was begun must be ended.
  [[nodiscard]] std::string take();

 private:
  void before_value();
  void new_line();
  JsonWriter& fraction(double number);
  JsonWriter& open(char bracket, Lines lines);
  JsonWriter& close(char bracket);
  void append_quoted(std::string_view text);

  std::string out_;
  std::vector<bool> has_members_;
  std::size_t one_line_depth_ = 0;  // of the outermost container that stands on one line; 0: none
  bool after_key_ = false;
};

}  // namespace lading
