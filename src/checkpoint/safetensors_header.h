// The safetensors header: bytes in, tensors out, or every reason why not. Pure.
//
// A file is 8 bytes of little-endian header length, that many bytes of JSON, then the data. The
// tensors must tile the data exactly: no hole, no overlap, nothing behind (R45). What is refused,
// and the places where we are stricter than the format's text (S1 to S3), stand in docs/reference/formats.md.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/json_reader.h"
#include "checkpoint/header.h"
#include "lading/result.h"

namespace lading::checkpoint {

inline constexpr std::uint64_t kLengthBytes = 8;

/// What the first 8 bytes of a file say, unchecked.
[[nodiscard]] std::uint64_t stated_header_length(std::string_view prefix);

/// The length of the JSON text, checked against the file and the limit before anything is allocated.
/// `prefix` holds as much of the first 8 bytes as there is.
Result<std::uint64_t> header_length_bytes(std::string_view prefix, const HeaderContext& context);

/// `json` is the header's text, header_length_bytes() long.
Result<Header, Errors> parse_header(const JsonBuffer& json, const HeaderContext& context);

}  // namespace lading::checkpoint
