// What a checkpoint holds, without loading it: `lading::inspect(checkpoint)`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lading/checkpoint.h"
#include "lading/dtype.h"
#include "lading/export.h"
#include "lading/result.h"
#include "lading/shape.h"

namespace lading {

enum class HashCheck : std::uint8_t { kSkip, kVerify };

enum class HashState : std::uint8_t {
  kNotChecked,
  kVerified,
  kUnknown,  ///< asked for, but nothing says what the hash should be
};

struct ShardInfo {
  std::string name;
  std::string path;
  std::uint64_t size_bytes = 0;
  std::uint64_t tensors = 0;
  std::vector<std::pair<std::string, std::string>> metadata;
  HashState hash = HashState::kNotChecked;
};

struct TensorInfo {
  std::string name;
  std::optional<DType> dtype;  ///< nothing: a type that this version does not know
  std::string dtype_name;
  Shape shape;
  std::uint32_t shard = 0;  ///< into Inspection::shards
  ByteRange bytes;          ///< in that shard's file
};

/// A weight that stands in the checkpoint as packed codes, and that a load dequantizes.
struct PackedWeightInfo {
  std::string name;  ///< that it would have in a checkpoint that is not quantized
  Shape shape;       ///< likewise
  std::string scheme;
  std::vector<std::string> keys;  ///< that it is made of, the payload first
};

struct Inspection {
  std::string path;  ///< the index, or the only file; absolute
  std::optional<std::string> index_path;
  std::vector<ShardInfo> shards;                 ///< sorted by name
  std::vector<TensorInfo> tensors;               ///< sorted by name
  std::vector<PackedWeightInfo> packed_weights;  ///< sorted by name
  std::uint64_t tensor_bytes = 0;
  Errors warnings;
};

/// Every problem of the checkpoint is in the error.
LADING_API Result<Inspection, Errors> inspect(const CheckpointRef& checkpoint, HashCheck hash = HashCheck::kSkip);

}  // namespace lading
