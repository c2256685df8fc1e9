// Error: what went wrong, where, and what to do about it. Errors: all that went wrong.
//
// A code is stable and greppable: the same word stands in the header, the tests, the docs
// and the JSON output. Messages may be reworded; codes may not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lading/byte_range.h"
#include "lading/export.h"

namespace lading {

/// How a command ends; the C ABI and the notes of ranks carry the same numbers.
enum class Exit : std::uint8_t {
  kOk = 0,
  kInternal = 1,    ///< a bug in lading
  kUsage = 2,       ///< the request
  kCheckpoint = 3,  ///< the files
  kPlan = 4,        ///< what does not go together
  kLoad = 5,        ///< what went wrong while loading
  kDiffers = 6,     ///< two things were compared, and differ
  kRanks = 7,       ///< another rank
};

// One line per code: enumerator, word, exit code.
#define LADING_ERROR_CODES(X)                                     \
  X(kInternal, "internal", kInternal)                             \
  X(kUsage, "usage", kUsage)                                      \
  /* paths and files */                                           \
  X(kNotFound, "not_found", kCheckpoint)                          \
  X(kNotACheckpoint, "not_a_checkpoint", kCheckpoint)             \
  X(kAmbiguousCheckpoint, "ambiguous_checkpoint", kCheckpoint)    \
  X(kNotRegularFile, "not_regular_file", kCheckpoint)             \
  X(kOutsideRoot, "outside_root", kCheckpoint)                    \
  X(kSymlinkLoop, "symlink_loop", kCheckpoint)                    \
  X(kOpenFailed, "open_failed", kCheckpoint)                      \
  X(kReadFailed, "read_failed", kCheckpoint)                      \
  X(kFileTruncated, "file_truncated", kCheckpoint)                \
  X(kFileChanged, "file_changed", kCheckpoint)                    \
  X(kCacheInvalid, "cache_invalid", kCheckpoint)                  \
  X(kHashMismatch, "hash_mismatch", kCheckpoint)                  \
  X(kOutOfMemory, "out_of_memory", kCheckpoint)                   \
  X(kUnverified, "unverified", kCheckpoint)                       \
  X(kWriteFailed, "write_failed", kLoad)                          \
  /* loading */                                                   \
  X(kCancelled, "cancelled", kLoad)                               \
  X(kIncomplete, "incomplete", kLoad)                             \
  X(kNoDevice, "no_device", kLoad)                                \
  X(kDeviceFailed, "device_failed", kLoad)                        \
  X(kDeviceMemory, "device_memory", kLoad)                        \
  X(kValuesDiffer, "values_differ", kLoad)                        \
  X(kScale, "scale", kLoad)                                       \
  /* ranks */                                                     \
  X(kNoAnswer, "no_answer", kRanks)                               \
  X(kRanksDiffer, "ranks_differ", kRanks)                         \
  /* JSON */                                                      \
  X(kJsonSyntax, "json_syntax", kCheckpoint)                      \
  X(kJsonUtf8, "json_utf8", kCheckpoint)                          \
  X(kJsonDepth, "json_depth", kCheckpoint)                        \
  X(kJsonDuplicateKey, "json_duplicate_key", kCheckpoint)         \
  /* skeleton, layout, mapping, policy, plan */                   \
  X(kSchema, "schema", kPlan)                                     \
  X(kSkeleton, "skeleton", kPlan)                                 \
  X(kPolicy, "policy", kPlan)                                     \
  X(kDType, "dtype", kPlan)                                       \
  X(kLayout, "layout", kPlan)                                     \
  X(kMapping, "mapping", kPlan)                                   \
  X(kPlan, "plan", kPlan)                                         \
  X(kPlanCheck, "plan_check", kPlan)                              \
  /* safetensors header */                                        \
  X(kHeaderTruncated, "header_truncated", kCheckpoint)            \
  X(kHeaderTooLarge, "header_too_large", kCheckpoint)             \
  X(kHeaderMetadata, "header_metadata", kCheckpoint)              \
  X(kHeaderField, "header_field", kCheckpoint)                    \
  X(kHeaderShape, "header_shape", kCheckpoint)                    \
  X(kHeaderOffsets, "header_offsets", kCheckpoint)                \
  X(kHeaderSize, "header_size", kCheckpoint)                      \
  X(kHeaderHole, "header_hole", kCheckpoint)                      \
  X(kHeaderOverlap, "header_overlap", kCheckpoint)                \
  X(kDataTruncated, "data_truncated", kCheckpoint)                \
  X(kTrailingBytes, "trailing_bytes", kCheckpoint)                \
  X(kUnknownDType, "unknown_dtype", kCheckpoint)                  \
  /* index */                                                     \
  X(kIndexInvalid, "index_invalid", kCheckpoint)                  \
  X(kIndexShardName, "index_shard_name", kCheckpoint)             \
  X(kIndexMissingShard, "index_missing_shard", kCheckpoint)       \
  X(kIndexMissingTensor, "index_missing_tensor", kCheckpoint)     \
  X(kIndexUnlistedTensor, "index_unlisted_tensor", kCheckpoint)   \
  X(kIndexDuplicateTensor, "index_duplicate_tensor", kCheckpoint) \
  X(kIndexTotalSize, "index_total_size", kCheckpoint)             \
  X(kStrayShard, "stray_shard", kCheckpoint)

enum class Code : std::uint8_t {
#define LADING_ENUMERATOR(enumerator, word, exit_code) enumerator,
  LADING_ERROR_CODES(LADING_ENUMERATOR)
#undef LADING_ENUMERATOR
};

[[nodiscard]] LADING_API std::string_view word(Code code);
[[nodiscard]] LADING_API Exit exit_code(Code code);

struct Error {
  Code code = Code::kInternal;
  std::string message;
  std::string file;                   ///< as the user would find it; empty if none
  std::optional<std::string> tensor;  ///< a name may be empty, so nothing means none
  std::optional<ByteRange> bytes;     ///< in `file`
  std::optional<int> rank;
  std::string rule;  ///< "R45", "S2", or empty
  std::string expected;
  std::string found;
  std::string remedy;

  Error() = default;
  Error(Code code_, std::string message_) : code(code_), message(std::move(message_)) {}

  Error&& in_file(std::string_view name) && {
    file = name;
    return std::move(*this);
  }
  Error&& of_tensor(std::string_view name) && {
    tensor = name;
    return std::move(*this);
  }
  Error&& at(ByteRange range) && {
    bytes = range;
    return std::move(*this);
  }
  Error&& on_rank(int r) && {
    rank = r;
    return std::move(*this);
  }
  Error&& by_rule(std::string_view name) && {
    rule = name;
    return std::move(*this);
  }
  Error&& wanted(std::string what) && {
    expected = std::move(what);
    return std::move(*this);
  }
  Error&& got(std::string what) && {
    found = std::move(what);
    return std::move(*this);
  }
  Error&& try_this(std::string what) && {
    remedy = std::move(what);
    return std::move(*this);
  }

  /// One line, safe to print: names from files are escaped and cut to a readable length.
  [[nodiscard]] LADING_API std::string text() const;
};

/// Everything that is wrong, in the order in which it was found. As an error it is not empty.
/// A hostile file can have millions of faults, or a name of a megabyte in each: those past a thousand, or
/// past a few megabytes of text, are counted, not kept.
class Errors {
 public:
  static constexpr std::size_t kMaxListed = 1000;
  static constexpr std::size_t kMaxListedBytes = 4U << 20;

  Errors() = default;
  Errors(Error error) { add(std::move(error)); }

  LADING_API void add(Error error);
  LADING_API void add(Errors others);
  /// Says where errors found in a piece of a file stand in the file.
  LADING_API void relocate(std::string_view file, std::uint64_t begin_bytes);
  /// True when more would only be counted: whoever makes errors of great names can save the work.
  [[nodiscard]] bool is_full() const { return is_full_; }
  void count_not_listed(std::uint64_t count) { not_listed_ += count; }
  [[nodiscard]] std::uint64_t not_listed() const { return not_listed_; }
  [[nodiscard]] bool empty() const { return list_.empty(); }
  [[nodiscard]] std::size_t size() const { return list_.size(); }
  [[nodiscard]] const Error& front() const { return list_.front(); }
  [[nodiscard]] auto begin() const { return list_.begin(); }
  [[nodiscard]] auto end() const { return list_.end(); }
  [[nodiscard]] const std::vector<Error>& list() const { return list_; }

 private:
  std::vector<Error> list_;
  std::size_t listed_bytes_ = 0;
  bool is_full_ = false;  // one that did not fit closes the list
  std::uint64_t not_listed_ = 0;
};

}  // namespace lading
