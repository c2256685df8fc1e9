// Hugging Face caches name a blob by its hash: SHA-256 for large files, git's SHA-1 for small ones.
// So a file in a cache can be verified offline.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "io/file.h"
#include "lading/result.h"

namespace lading::source {

enum class HashKind : std::uint8_t { kSha256, kGitSha1 };

/// The hash that a resolved path promises ("blobs/<64 or 40 hex digits>"), if it does.
struct PromisedHash {
  HashKind kind;
  std::string hex;
};
std::optional<PromisedHash> promised_hash(std::string_view resolved_path);

/// Reads the whole file, in pieces.
Result<std::string> hash_file(const io::File& file, HashKind kind);

}  // namespace lading::source
