// How a new checkpoint is to look: which keys, in which dtypes, in how many files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lading/dtype.h"
#include "lading/name_pattern.h"
#include "lading/shape.h"

namespace lading::saving {

/// The dtypes of the files.
enum class FileDTypes : std::uint8_t {
  kAuto,    ///< the base's, and the memory's without a base; a cast that may lose bits is refused
  kBase,    ///< the base's, whatever the cast loses
  kMemory,  ///< what the model has in memory
  kGiven,   ///< Options::dtype for floats, whatever the cast loses; all else as under kAuto
};

/// What becomes of keys of the base that no tensor of the model makes.
enum class UnmappedKeys : std::uint8_t {
  kRefuse,
  kKeep,  ///< their bytes are taken over from the base's files
  kDrop,  ///< left out; a warning names them
};

/// A key of a checkpoint that has no base.
struct Key {
  std::string key;
  Shape shape;
  std::optional<DType> dtype = {};  ///< nothing: as FileDTypes says
  std::string file = {};            ///< that has it, by name; of all keys or of none
};

using Metadata = std::vector<std::pair<std::string, std::string>>;

inline constexpr std::uint64_t kDefaultMaxShardBytes = 5'000'000'000;

struct Options {
  FileDTypes dtypes = FileDTypes::kAuto;
  std::optional<DType> dtype = {};  ///< of kGiven
  /// A file has at most so many bytes of tensors, unless one tensor alone has more. Nothing: the base's files, and
  /// kDefaultMaxShardBytes without a base.
  std::optional<std::uint64_t> max_shard_bytes = {};
  std::vector<NamePattern> leave_out = {};  ///< tensors of the model that are not saved, and their keys
  UnmappedKeys unmapped = UnmappedKeys::kRefuse;
  std::optional<Metadata> metadata = {};  ///< of each file; nothing: the base's, or {"format": "pt"}
  /// Without a base: the keys, in the order in which files are filled. Nothing: every parameter and persistent buffer
  /// under its own name, each tie class under its first.
  std::optional<std::vector<Key>> keys = {};
  std::vector<std::pair<std::string, std::uint64_t>> index_metadata = {};  ///< of the index, beside its "total_size"
};

}  // namespace lading::saving
