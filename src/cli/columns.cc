#include "cli/columns.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace lading::cli {

std::string plural(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", with_commas(count), noun, count == 1 ? "" : "s");
}

std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string pad(std::string_view text, std::size_t width) {
  const std::size_t have = width_of(text);
  return std::string(text) + std::string(have < width ? width - have : 0, ' ');
}

std::string shown_name(std::string_view name) {
  const std::string quoted = quote(name);
  return !name.empty() && quoted.substr(1, quoted.size() - 2) == name ? std::string(name) : quoted;
}

std::string shown_json(std::string_view json) {
  std::string shown;
  const std::string escaped = shorten(json);
  for (std::size_t i = 0; i < escaped.size(); ++i) {
    if (escaped[i] == '\\' && i + 1 < escaped.size() && escaped[i + 1] == '"') continue;
    shown += escaped[i];
  }
  return shown;
}

}  // namespace lading::cli
