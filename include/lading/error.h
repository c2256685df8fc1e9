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

// One line per code: enumerator, word, exit code of the command line.
#define LADING_ERROR_CODES(X)                           \
  X(kInternal, "internal", 1)                           \
  X(kUsage, "usage", 2)                                 \
  /* paths and files */                                 \
  X(kNotFound, "not_found", 3)                          \
  X(kNotACheckpoint, "not_a_checkpoint", 3)             \
  X(kAmbiguousCheckpoint, "ambiguous_checkpoint", 3)    \
  X(kNotRegularFile, "not_regular_file", 3)             \
  X(kOutsideRoot, "outside_root", 3)                    \
  X(kSymlinkLoop, "symlink_loop", 3)                    \
  X(kOpenFailed, "open_failed", 3)                      \
  X(kReadFailed, "read_failed", 3)                      \
  X(kFileTruncated, "file_truncated", 3)                \
  X(kFileChanged, "file_changed", 3)                    \
  X(kCacheInvalid, "cache_invalid", 3)                  \
  X(kHashMismatch, "hash_mismatch", 3)                  \
  X(kOutOfMemory, "out_of_memory", 3)                   \
  X(kUnverified, "unverified", 3)                       \
  X(kWriteFailed, "write_failed", 5)                    \
  /* loading */                                         \
  X(kCancelled, "cancelled", 5)                         \
  X(kIncomplete, "incomplete", 5)                       \
  X(kNoDevice, "no_device", 5)                          \
  X(kDeviceFailed, "device_failed", 5)                  \
  X(kDeviceMemory, "device_memory", 5)                  \
  X(kValuesDiffer, "values_differ", 5)                  \
  /* ranks */                                           \
  X(kNoAnswer, "no_answer", 7)                          \
  X(kRanksDiffer, "ranks_differ", 7)                    \
  /* JSON */                                            \
  X(kJsonSyntax, "json_syntax", 3)                      \
  X(kJsonUtf8, "json_utf8", 3)                          \
  X(kJsonDepth, "json_depth", 3)                        \
  X(kJsonDuplicateKey, "json_duplicate_key", 3)         \
  /* skeleton, layout, mapping, policy, plan */         \
  X(kSchema, "schema", 4)                               \
  X(kSkeleton, "skeleton", 4)                           \
  X(kPolicy, "policy", 4)                               \
  X(kDType, "dtype", 4)                                 \
  X(kLayout, "layout", 4)                               \
  X(kMapping, "mapping", 4)                             \
  X(kPlan, "plan", 4)                                   \
  X(kPlanCheck, "plan_check", 4)                        \
  /* safetensors header */                              \
  X(kHeaderTruncated, "header_truncated", 3)            \
  X(kHeaderTooLarge, "header_too_large", 3)             \
  X(kHeaderMetadata, "header_metadata", 3)              \
  X(kHeaderField, "header_field", 3)                    \
  X(kHeaderShape, "header_shape", 3)                    \
  X(kHeaderOffsets, "header_offsets", 3)                \
  X(kHeaderSize, "header_size", 3)                      \
  X(kHeaderHole, "header_hole", 3)                      \
  X(kHeaderOverlap, "header_overlap", 3)                \
  X(kDataTruncated, "data_truncated", 3)                \
  X(kTrailingBytes, "trailing_bytes", 3)                \
  X(kUnknownDType, "unknown_dtype", 3)                  \
  /* index */                                           \
  X(kIndexInvalid, "index_invalid", 3)                  \
  X(kIndexShardName, "index_shard_name", 3)             \
  X(kIndexMissingShard, "index_missing_shard", 3)       \
  X(kIndexMissingTensor, "index_missing_tensor", 3)     \
  X(kIndexUnlistedTensor, "index_unlisted_tensor", 3)   \
  X(kIndexDuplicateTensor, "index_duplicate_tensor", 3) \
  X(kIndexTotalSize, "index_total_size", 3)             \
  X(kStrayShard, "stray_shard", 3)

enum class Code : std::uint8_t {
#define LADING_ENUMERATOR(enumerator, word, exit_code) enumerator,
  LADING_ERROR_CODES(LADING_ENUMERATOR)
#undef LADING_ENUMERATOR
};

[[nodiscard]] LADING_API std::string_view word(Code code);
[[nodiscard]] LADING_API int exit_code(Code code);

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
