// Catalog: everything that a checkpoint holds, by tensor name; and the proof that index and shards
// say the same (S5). Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/header.h"
#include "checkpoint/index.h"
#include "lading/result.h"

namespace lading::checkpoint {

struct CatalogFile {
  std::string name;  ///< as the index names it, or the file's own name
  std::uint64_t size_bytes = 0;
  std::uint64_t data_begin_bytes = 0;
  std::uint64_t tensors = 0;
  std::vector<std::pair<std::string, std::string>> metadata;
  std::uint32_t checkpoint = 0;  ///< 0: the base checkpoint; n: the n-th adapter
};

/// As its header has it; `file` says which file that is.
using CatalogTensor = HeaderTensor;

/// What the config.json beside the files says of how the weights are quantized.
struct Quantization {
  std::string method;  ///< "fp8", "gptq", …; "" if it is not said
  /// Of compressed-tensors "nvfp4-pack-quantized", …; of GPTQ "gptq_v2" (checkpoint_format), of AWQ "gemm" (version).
  std::string format;
  /// The block of the last dims that has one scale (weight_block_size); empty if it is not said, or not one for all.
  std::vector<std::uint64_t> block = {};
  /// Modules whose weights are said not to be quantized (modules_to_not_convert, ignore); as they are written.
  std::vector<std::string> not_converted = {};
  std::optional<std::uint64_t> bits = {};       ///< of a code of an integer; nothing if it is not one for all
  std::optional<std::int64_t> group_size = {};  ///< elements along a row that share a scale; -1: the whole row
  /// By the key of a tensor that says the shape of a packed weight: its values.
  std::map<std::string, std::vector<std::uint64_t>, std::less<>> shapes = {};
  std::optional<bool> has_order = {};  ///< groups are in an order of their own (desc_act): some weights'
  /// The keys of groups (g_idx) that do not count up. Empty although there is an order: nobody looked.
  std::set<std::string, std::less<>> ordered = {};
  bool has_zero_points = false;  ///< of compressed-tensors: weights are said to have some ("symmetric": false)
  bool has_transforms = false;   ///< inputs or outputs are transformed as the model runs (transform_config)
};

/// A base checkpoint, and behind it the adapters that are loaded with it. Keys and file names are unique within one
/// checkpoint only.
struct Catalog {
  std::vector<CatalogFile> files;                 ///< by checkpoint, then sorted by name
  std::vector<CatalogTensor> tensors;             ///< by checkpoint, then sorted by name
  std::optional<Quantization> quantization;       ///< of the base checkpoint
  std::vector<std::size_t> adapter_tensors = {};  ///< by adapter: where its tensors begin

  [[nodiscard]] std::uint32_t checkpoints() const { return static_cast<std::uint32_t>(adapter_tensors.size() + 1); }
  [[nodiscard]] std::span<const CatalogTensor> tensors_of(std::uint32_t checkpoint) const;
  /// Null if this checkpoint does not have the key.
  [[nodiscard]] const CatalogTensor* find(std::string_view name, std::uint32_t checkpoint = 0) const;
  /// Adds a checkpoint without adapters behind all others.
  void append(Catalog adapter);
  [[nodiscard]] std::uint64_t tensor_bytes() const;
};

/// A shard that was opened: its name, size and header.
struct ShardHeader {
  std::string name;
  std::uint64_t size_bytes = 0;
  Header header;
};

struct CatalogResult {
  Catalog catalog;
  Errors warnings;
};

/// One file, no index.
CatalogResult catalog_of_file(ShardHeader shard);

/// The shards that the index names, in its order; nothing for one that could not be read. Those that were
/// read are compared with the index all the same, so that every problem is found, but there is a catalog only
/// if all are there. `index_file` is for messages.
Result<CatalogResult, Errors> catalog_of_index(Index index, std::vector<std::optional<ShardHeader>> shards,
                                               std::string_view index_file);

}  // namespace lading::checkpoint
