// The files of a new checkpoint: which key lies where, and what stands in front of the data. Pure.
//
// The catalog is what the ordinary reader finds in the headers that are made here, so what is planned is what a load of
// the new checkpoint will see.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/catalog.h"
#include "lading/result.h"
#include "lading/save_options.h"

namespace lading::planner {

/// No tensor can have this name in a safetensors file.
inline constexpr std::string_view kMetadataKey = "__metadata__";

struct OutputKey {
  std::string key;
  DType dtype = DType::kF32;
  Shape shape;
};

struct OutputShard {
  std::string name;
  saving::Metadata metadata;
  std::vector<OutputKey> keys;  ///< in the order of the file
};

struct OutputFiles {
  checkpoint::Catalog catalog;
  std::vector<std::string> headers;  ///< by the catalog's files: everything in front of the data
  std::string index_name;            ///< "" for one file
  std::string index;
};

/// As huggingface_hub fills files: in the given order, a new one where a key would make it too large, and a file of its
/// own for a key that is too large by itself. Within a file keys are in the order of the safetensors package.
[[nodiscard]] std::vector<OutputShard> fill_shards(std::vector<OutputKey> keys, std::uint64_t max_shard_bytes,
                                                   const saving::Metadata& metadata);

/// The files that `wanted` names, which has all of these keys.
[[nodiscard]] std::vector<OutputShard> shards_by_name(std::vector<OutputKey> keys,
                                                      const std::vector<saving::Key>& wanted,
                                                      const saving::Metadata& metadata);

struct IndexFacts {
  std::string name;                                             ///< "": the usual one, and none for one file
  std::vector<std::pair<std::string, std::uint64_t>> metadata;  ///< beside "total_size"
};

/// Refuses what no reader accepts, such as two files of one name.
Result<OutputFiles, Errors> lay_out_files(std::vector<OutputShard> shards, const IndexFacts& index);

}  // namespace lading::planner
