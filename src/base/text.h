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

/// Safe on a terminal: control, escape, bidirectional and invisible characters and invalid bytes
/// come out as \n, \x1b, \u202e; so do backslash and double quote, which keeps it reversible.
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
