// Text for people: names from files are data, and may hold anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lading {

/// Where valid UTF-8 ends: the index of the first byte that does not belong, or nothing.
/// Surrogates and overlong forms are invalid.
[[nodiscard]] std::optional<std::size_t> find_invalid_utf8(std::string_view text);

/// How many leading characters stand for themselves everywhere: printable ASCII but quotes and backslashes. Most names
/// are nothing else.
[[nodiscard]] std::size_t plain_prefix(std::string_view text);
/// Whether a terminal would obey, hide or reorder the character instead of showing it.
[[nodiscard]] bool is_deceptive(char32_t character);

/// A character from the front of valid UTF-8.
struct Character {
  char32_t code_point = 0;
  std::size_t size_bytes = 0;
};
[[nodiscard]] Character first_character(std::string_view text);

/// The longest beginning of at most that many bytes that does not end inside a UTF-8 sequence.
[[nodiscard]] std::string_view cut_to(std::string_view text, std::size_t size_bytes);

/// Safe on a terminal: control, escape, bidirectional and invisible characters and invalid bytes
/// come out as \n, \x1b, \u202e, and backslash and double quote behind a backslash, so that it can be undone.
[[nodiscard]] std::string escape(std::string_view text);

/// escape(), cut in the middle when it is too long to read.
[[nodiscard]] std::string shorten(std::string_view text);
/// shorten(), in double quotes.
[[nodiscard]] std::string quote(std::string_view text);

/// "1.50 GB": decimal units, as disks and buses are sold.
[[nodiscard]] std::string human_bytes(std::uint64_t bytes);
/// "1,234,567"
[[nodiscard]] std::string with_commas(std::uint64_t number);

}  // namespace lading
