#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

namespace lading {
namespace {

// Longest name shown whole. Real tensor names reach about 120 characters.
constexpr std::size_t kLongestShown = 200;
constexpr std::size_t kShownAtEachEnd = 80;

struct Decoded {
  char32_t code_point = 0;
  std::size_t length_bytes = 0;  // 0: invalid
};

Decoded decode_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  std::size_t length = 0;
  char32_t code_point = 0;
  char32_t smallest = 0;
  if ((lead & 0xE0) == 0xC0) {
    length = 2, code_point = lead & 0x1F, smallest = 0x80;
  } else if ((lead & 0xF0) == 0xE0) {
    length = 3, code_point = lead & 0x0F, smallest = 0x800;
  } else if ((lead & 0xF8) == 0xF0) {
    length = 4, code_point = lead & 0x07, smallest = 0x10000;
  } else {
    return {};
  }
  if (text.size() < length) return {};
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code_point = (code_point << 6) | (byte(i) & 0x3F);
  }
  const bool surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
  if (code_point < smallest || code_point > 0x10FFFF || surrogate) return {};
  return {code_point, length};
}

struct CodePoints {
  char32_t first;
  char32_t last;
};

// Characters that a terminal obeys, hides or reorders instead of showing: controls, and what Unicode calls
// default-ignorable or bidirectional.
constexpr CodePoints kDeceptive[] = {
    {0x00, 0x1F},     {0x7F, 0x9F},       {0xAD, 0xAD},       {0x34F, 0x34F},     {0x61C, 0x61C},
    {0x115F, 0x1160}, {0x17B4, 0x17B5},   {0x180B, 0x180F},   {0x200B, 0x200F},   {0x2028, 0x202E},
    {0x2060, 0x206F}, {0x3164, 0x3164},   {0xFE00, 0xFE0F},   {0xFEFF, 0xFEFF},   {0xFFA0, 0xFFA0},
    {0xFFF0, 0xFFFB}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A}, {0xE0000, 0xE0FFF},
};

// The nearest place at or before `place` that is not inside a UTF-8 sequence, which is at most 4 bytes long.
std::size_t start_of_character(std::string_view text, std::size_t place) {
  const std::size_t lowest = place < 3 ? 0 : place - 3;
  std::size_t start = place;
  while (start > lowest && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
  return start;
}

// \x is a byte, \u and \U are characters: what was escaped can be told again.
void append_escaped_byte(std::string& out, unsigned char byte) { out += fmt::format("\\x{:02x}", byte); }

void append_escaped(std::string& out, char32_t c) {
  switch (c) {
    case '\n': out += "\\n"; return;
    case '\r': out += "\\r"; return;
    case '\t': out += "\\t"; return;
    default: break;
  }
  if (c < 0x80) {
    append_escaped_byte(out, static_cast<unsigned char>(c));
  } else if (c < 0x10000) {
    out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
  } else {
    out += fmt::format("\\U{:08x}", static_cast<unsigned>(c));
  }
}

}  // namespace

std::size_t plain_prefix(std::string_view text) {
  const auto is_plain = [](char c) { return c >= 0x20 && c < 0x7F && c != '"' && c != '\\'; };
  return static_cast<std::size_t>(std::find_if_not(text.begin(), text.end(), is_plain) - text.begin());
}

bool is_deceptive(char32_t c) {
  return std::any_of(std::begin(kDeceptive), std::end(kDeceptive),
                     [&](const CodePoints& range) { return range.first <= c && c <= range.last; });
}

Character first_character(std::string_view text) {
  const Decoded decoded = decode_utf8(text);
  return {decoded.code_point, decoded.length_bytes};
}

std::optional<std::size_t> find_invalid_utf8(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const Decoded decoded = decode_utf8(text.substr(i));
    if (decoded.length_bytes == 0) return i;
    i += decoded.length_bytes;
  }
  return std::nullopt;
}

std::string escape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::size_t i = 0;
  for (;;) {
    const std::size_t plain = plain_prefix(text.substr(i));
    out += text.substr(i, plain);
    i += plain;
    if (i == text.size()) break;
    const Decoded decoded = decode_utf8(text.substr(i));
    if (decoded.length_bytes == 0) {
      append_escaped_byte(out, static_cast<unsigned char>(text[i]));
      ++i;
      continue;
    }
    if (decoded.code_point == '\\' || decoded.code_point == '"') {
      out += '\\';
      out += static_cast<char>(decoded.code_point);
    } else if (is_deceptive(decoded.code_point)) {
      append_escaped(out, decoded.code_point);
    } else {
      out += text.substr(i, decoded.length_bytes);
    }
    i += decoded.length_bytes;
  }
  return out;
}

std::string_view cut_to(std::string_view text, std::size_t size_bytes) {
  return text.size() <= size_bytes ? text : text.substr(0, start_of_character(text, size_bytes));
}

std::string shorten(std::string_view text) {
  if (text.size() <= kLongestShown) return escape(text);
  return fmt::format("{}…{}", escape(cut_to(text, kShownAtEachEnd)),
                     escape(text.substr(start_of_character(text, text.size() - kShownAtEachEnd))));
}

std::string quote(std::string_view text) {
  if (text.size() <= kLongestShown) return fmt::format("\"{}\"", escape(text));
  return fmt::format("\"{}\" ({} bytes long)", shorten(text), text.size());
}

std::string human_bytes(std::uint64_t bytes) {
  constexpr std::array kUnits = {"kB", "MB", "GB", "TB", "PB", "EB"};
  if (bytes < 1000) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1000;
  std::size_t unit = 0;
  while (value >= 999.995 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string with_commas(std::uint64_t number) {
  const std::string digits = std::to_string(number);
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

}  // namespace lading
