// Writes a checkpoint anew: in another dtype, in other files, under other names, without quantization.
// `lading::convert(request, place)`.
//
// It is a load and a save of one made-up model: its tensors are the keys of the new checkpoint, and its ranks hold
// parts of them. Two parts are in memory: one is written while the next one is read. Both plans are proved before a
// byte is written.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lading/checkpoint.h"
#include "lading/document.h"
#include "lading/dtype.h"
#include "lading/name_pattern.h"
#include "lading/save.h"

namespace lading {

struct ConvertRequest {
  CheckpointRef checkpoint = {};
  /// Of floating tensors: F64, F32, F16 or BF16, rounded where it has fewer bits. Nothing: as in the files, and of
  /// dequantized tensors as config.json says, or else BF16.
  std::optional<DType> dtype = {};
  /// Tensors and their new names. Names are those of the checkpoint as if it were not quantized. In a pattern "*"
  /// matches any characters; the new name has as many, each for what that of the pattern matched. An exact name goes
  /// before patterns.
  std::vector<std::pair<NamePattern, std::string>> renames = {};
  std::vector<NamePattern> drop = {};  ///< tensors that are left out
  /// Its tensors are those of the new checkpoint. What it does not reach is refused, but for `drop` and `keep`. Not
  /// with renames.
  std::optional<Given<mapping::Mapping>> mapping = {};
  std::vector<NamePattern> keep = {};  ///< tensors that keep their names though the mapping does not reach them
  /// A LoRA of PEFT that is added to the weights: a directory with adapter_config.json and the matrices. Its modules
  /// are named as the new tensors are.
  std::optional<CheckpointRef> adapter = {};
  /// A file has at most so many bytes of tensors, unless one tensor alone has more.
  std::uint64_t max_shard_bytes = saving::kDefaultMaxShardBytes;
  /// About so many bytes of tensors are in memory at once, in two parts. More than that where a checkpoint has more
  /// than 4,096 parts of half this size, or tensors of packed elements (F4, F6) that are larger.
  std::uint64_t part_bytes = std::uint64_t{128} << 20;
  std::uint32_t threads = 0;                               ///< 0: as many as help
  const std::atomic<bool>* cancelled = nullptr;            ///< set it from anywhere, a signal handler too
  std::function<void(const LoadProgress&)> progress = {};  ///< on the calling thread, a few times a second
};

/// A weight to which an adapter was added: scale * (b · a), in F32, rounded once to the weight's dtype in the file.
struct MergedWeight {
  std::string key;
  std::string a;  ///< keys of the adapter
  std::string b;
  double scale = 1;
};

struct ConvertReport {
  SavePlanReport plan;               ///< files and keys of the new checkpoint; its ranks are the parts
  FinishedSave finished;             ///< the ledger, and the digest of each key
  std::string path;                  ///< of the index or the only file that was read
  std::vector<std::string> beside;   ///< the other files that were copied, config.json among them
  std::uint64_t dequantized = 0;     ///< keys that were multiplied by their scales
  std::string adapter_path;          ///< of the adapter's only file, or its index
  std::vector<MergedWeight> merged;  ///< by key
  std::vector<std::string> dropped;  ///< tensors that were left out, by name
  std::uint64_t read_bytes = 0;      ///< of the checkpoint
  std::uint64_t written_bytes = 0;   ///< of tensors
  std::uint64_t part_bytes = 0;      ///< of the largest part: twice as much of the tensors was in memory at once
  std::uint64_t staging_bytes = 0;   ///< at most, beside the two parts
  double planning_seconds = 0;       ///< of both plans
  double converting_seconds = 0;     ///< from the first byte to the checkpoint in its place
  bool replaced = false;             ///< another directory was replaced
  Errors warnings;
};

/// The new checkpoint stands at the place when the call returns, or nothing has changed there. Refuses a place in or
/// around the checkpoint that is read.
LADING_API Result<ConvertReport, SaveFailure> convert(const ConvertRequest& request, const SavePlace& place);

}  // namespace lading
