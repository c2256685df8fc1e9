// Small readers that the ledger's parts have in common. Inside this room only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fields.h"

namespace lading::ledger {

/// A problem with a value that stands at `path`.
void add_problem(Errors& errors, const JsonValue& value, std::string_view path, Error error);

/// How many problems there are, those that are only counted included.
[[nodiscard]] inline std::uint64_t count(const Errors& errors) { return errors.size() + errors.not_listed(); }

/// The optional member `checkpoint`: 0 for the base checkpoint, or one of so many adapters.
void read_checkpoint(JsonFields& fields, std::size_t adapters, std::uint32_t& out);

/// An array of whole numbers; nothing, and a problem, if it is anything else.
std::optional<std::vector<std::uint64_t>> read_numbers(const JsonValue& value, std::string_view path, Errors& errors);

/// 128 bits as Digest::text() writes them.
[[nodiscard]] bool is_hex_128(std::string_view text);

}  // namespace lading::ledger
