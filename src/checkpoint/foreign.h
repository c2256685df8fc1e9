// Checkpoints of other formats: a file is recognised by its first bytes, a directory by the names in it. Pure.
//
// Only magic numbers and names are compared. Nothing is unpickled, unpacked or parsed, and no size that a file states
// is used. The error says what the file is, and the command that converts or fetches it: docs/reference/formats.md
// lists them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lading/error.h"

namespace lading::checkpoint {

/// The magic number of a tar archive stands at byte 257; all others come earlier.
inline constexpr std::size_t kMagicBytes = 512;

/// `first_bytes` are the first kMagicBytes of the file, or the whole file if it is shorter. Returns nothing if they are
/// of no known format, or may be those of a safetensors file.
[[nodiscard]] std::optional<Error> recognise_file(std::string_view first_bytes, std::string_view file);

/// `names` is what the directory holds, and no safetensors file is among it. Returns nothing if no name tells a format.
[[nodiscard]] std::optional<Error> recognise_directory(const std::vector<std::string>& names,
                                                       std::string_view directory);

/// The directory holds several safetensors files and no index. Returns nothing unless DCP wrote them rank by rank: each
/// has parts of the same tensors then.
[[nodiscard]] std::optional<Error> recognise_shards_of_dcp(const std::vector<std::string>& names,
                                                           std::string_view directory);

}  // namespace lading::checkpoint
