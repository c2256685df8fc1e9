// The index of a sharded checkpoint (model.safetensors.index.json): which shard holds which tensor.
// Pure: names are checked here, files are opened elsewhere.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_reader.h"
#include "lading/result.h"

namespace lading::checkpoint {

/// As for headers; the largest known index is under 20 MB.
inline constexpr std::uint64_t kMaxIndexBytes = 100'000'000;
/// The largest known checkpoints have some hundred.
inline constexpr std::size_t kMaxShards = 100'000;

struct IndexEntry {
  std::string tensor;
  std::uint32_t shard = 0;   ///< into Index::shards
  std::uint64_t offset = 0;  ///< where the entry stands in the index
};

struct Index {
  std::vector<std::string> shards;  ///< sorted, each once
  std::vector<IndexEntry> entries;  ///< in file order
  std::optional<std::uint64_t> total_size_bytes;
  Errors warnings;
};

Result<Index, Errors> parse_index(const JsonBuffer& json, std::string_view file);

/// S4: a normalised relative path that ends in ".safetensors". Says what is wrong, or nothing.
std::optional<std::string> why_not_a_shard_name(std::string_view name);

}  // namespace lading::checkpoint
