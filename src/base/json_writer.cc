#include "base/json_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "lading/result.h"

namespace lading {

void JsonWriter::new_line() {
  if (one_line_depth_ > 0) return;
  out_ += '\n';
  out_.append(2 * has_members_.size(), ' ');
}

void JsonWriter::before_value() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (has_members_.empty()) return;
  if (has_members_.back()) out_ += one_line_depth_ > 0 ? ", " : ",";
  has_members_.back() = true;
  new_line();
}

JsonWriter& JsonWriter::open(char bracket, Lines lines) {
  before_value();
  out_ += bracket;
  has_members_.push_back(false);
  if (lines == Lines::kOne && one_line_depth_ == 0) one_line_depth_ = has_members_.size();
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  LADING_CHECK(!has_members_.empty() && !after_key_);
  const bool had_members = has_members_.back();
  has_members_.pop_back();
  if (had_members) new_line();
  if (has_members_.size() < one_line_depth_) one_line_depth_ = 0;
  out_ += bracket;
  return *this;
}

JsonWriter& JsonWriter::begin_object(Lines lines) { return open('{', lines); }
JsonWriter& JsonWriter::end_object() { return close('}'); }
JsonWriter& JsonWriter::begin_array(Lines lines) { return open('[', lines); }
JsonWriter& JsonWriter::end_array() { return close(']'); }

JsonWriter& JsonWriter::key(std::string_view key) {
  before_value();
  append_quoted(key);
  out_ += ": ";
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::string(std::string_view text) {
  before_value();
  append_quoted(text);
  return *this;
}

JsonWriter& JsonWriter::number(std::uint64_t number) {
  before_value();
  out_ += std::to_string(number);
  return *this;
}

JsonWriter& JsonWriter::fraction(double number) {
  if (std::isnan(number)) return string("nan");
  if (std::isinf(number)) return string(number > 0 ? "inf" : "-inf");
  before_value();
  out_ += fmt::format("{}", number);
  return *this;
}

JsonWriter& JsonWriter::literal(std::string_view number) {
  before_value();
  out_ += number;
  return *this;
}

JsonWriter& JsonWriter::boolean(bool value) {
  before_value();
  out_ += value ? "true" : "false";
  return *this;
}

JsonWriter& JsonWriter::null() {
  before_value();
  out_ += "null";
  return *this;
}

// Names of files need not be UTF-8; a byte that is not comes out as U+FFFD, so that the text stays JSON.
void JsonWriter::append_quoted(std::string_view text) {
  out_ += '"';
  for (;;) {
    const std::size_t plain = plain_prefix(text);
    out_ += text.substr(0, plain);
    text.remove_prefix(plain);
    if (text.empty()) break;
    const Character next = first_character(text);
    const char32_t c = next.code_point;
    if (next.size_bytes == 0) {
      out_ += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      out_ += '\\';
      out_ += static_cast<char>(c);
    } else if (is_deceptive(c) && c < 0x10000) {
      // Somebody may look at it on a terminal; a program reads the same character either way.
      out_ += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else if (is_deceptive(c)) {
      const unsigned pair = static_cast<unsigned>(c) - 0x10000;
      out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (pair >> 10), 0xDC00 + (pair & 0x3FF));
    } else {
      out_ += text.substr(0, next.size_bytes);
    }
    text.remove_prefix(std::max<std::size_t>(1, next.size_bytes));
  }
  out_ += '"';
}

std::string JsonWriter::take() {
  LADING_CHECK(has_members_.empty());
  out_ += '\n';
  return std::move(out_);
}

}  // namespace lading
