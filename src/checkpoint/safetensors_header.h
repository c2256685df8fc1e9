// The safetensors header: bytes in, tensors out, or every reason why not. Pure.
//
// A file is 8 bytes of little-endian header length, that many bytes of JSON, then the data. The
// tensors must tile the data exactly: no hole, no overlap, nothing behind (R45). What is refused,
// and the places where we are stricter than the format's text (S1 to S3), stand in docs/formats.md.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_reader.h"
#include "lading/dtype.h"
#include "lading/result.h"
#include "lading/shape.h"

namespace lading::checkpoint {

inline constexpr std::uint64_t kLengthBytes = 8;
/// The reference implementation's limit.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr std::size_t kMaxRank = 64;
/// Tensors and entries of __metadata__, of all files of a checkpoint together. The largest checkpoints that we know
/// have 300,000 tensors. What is made of each takes many times the 60 bytes that a hostile header needs to name it.
inline constexpr std::uint64_t kMaxEntries = 1'000'000;
inline constexpr JsonLimits kHeaderLimits{kMaxEntries + 1, 2 * kMaxEntries, Code::kHeaderTooLarge};

struct HeaderTensor {
  std::string name;
  std::optional<DType> dtype;  ///< nothing: a type that this version does not know
  std::string unknown_dtype;   ///< its name then
  Shape shape;
  std::uint32_t file = 0;  ///< into Catalog::files, in a catalog
  ByteRange bytes;         ///< in the file, not in its data section
};

struct Header {
  std::vector<HeaderTensor> tensors;  ///< by position in the file
  std::vector<std::pair<std::string, std::string>> metadata;
  std::uint64_t data_begin_bytes = 0;
  Errors warnings;
};

enum class TrailingBytes : std::uint8_t { kRefuse, kAllow };

struct HeaderContext {
  std::string_view file;
  std::uint64_t file_size_bytes = 0;
  TrailingBytes trailing_bytes = TrailingBytes::kRefuse;
  std::uint64_t max_entries = kMaxEntries;  ///< that the checkpoint's other files have left for this one
};

/// What the first 8 bytes of a file say, unchecked.
[[nodiscard]] std::uint64_t stated_header_length(std::string_view prefix);

/// The length of the JSON text, checked against the file and the limit before anything is allocated.
/// `prefix` holds as much of the first 8 bytes as there is.
Result<std::uint64_t> header_length_bytes(std::string_view prefix, const HeaderContext& context);

/// `json` is the header's text, header_length_bytes() long.
Result<Header, Errors> parse_header(const JsonBuffer& json, const HeaderContext& context);

}  // namespace lading::checkpoint
