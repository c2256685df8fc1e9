// Text in columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lading::cli {

/// "1 tensor", "2,000 tensors"
[[nodiscard]] std::string plural(std::uint64_t count, std::string_view noun);
/// Columns count characters, not bytes; a name in another script must not push them apart.
[[nodiscard]] std::size_t width_of(std::string_view text);
[[nodiscard]] std::string pad(std::string_view text, std::size_t width);
/// Quotes only where they are needed: ordinary names can be copied as they are.
[[nodiscard]] std::string shown_name(std::string_view name);
/// JSON text, safe on a terminal and short; its own quotes stay readable.
[[nodiscard]] std::string shown_json(std::string_view json);

}  // namespace lading::cli
