// Bytes inside of JSON text (RFC 4648, standard alphabet, padded).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lading {

[[nodiscard]] std::string encode_base64(const std::vector<std::byte>& bytes);
/// Nothing if it is not what encode_base64 writes for some bytes: other characters, line ends, missing padding, or bits
/// behind the last byte.
[[nodiscard]] std::optional<std::vector<std::byte>> decode_base64(std::string_view text);

}  // namespace lading
