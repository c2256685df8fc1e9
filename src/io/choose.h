// Chooser: which backend a read goes through, decided by looking at the file.
//
// A file is looked at as a whole once: on what file system it lies, how large it is, how much of it is in the page
// cache. Only where that left it open (a file that is partly in the cache) is each read looked at. The reasons and
// the measurements are in docs/how-it-works/io.md. Thread-safe; `pick` is cheap enough for every read of megabytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "io/file.h"
#include "io/notes.h"
#include "io/read_backend.h"
#include "io/residency.h"
#include "lading/byte_range.h"
#include "lading/read_method.h"

namespace lading::io {

/// A file of which so much is in the page cache counts as cached: the few missing pages are not worth a second way
/// through it.
inline constexpr double kResidentShare = 0.9;

/// What a look at the whole file says of all its reads.
enum class FileVerdict : std::uint8_t {
  kBuffered,  ///< through the page cache
  kDirect,    ///< past it
  kByRead,    ///< it depends on where: partly in the cache
};

/// What a verdict is made from.
struct FileFacts {
  FileSystem file_system = FileSystem::kOther;
  std::uint64_t size_bytes = 0;
  std::optional<Residency> residency;  ///< of the whole file, if it is known
};

/// Pure.
[[nodiscard]] FileVerdict judge(const FileFacts& facts);

class Chooser {
 public:
  explicit Chooser(ReadMethod method);

  /// For reads of `range` of `file`. The backend lives as long as the chooser.
  [[nodiscard]] ReadBackend& pick(const File& file, ByteRange range);

  /// Whether reads of the file find nearly all of it in memory, so that many small ones are cheap.
  [[nodiscard]] static bool is_in_memory(const File& file);

  /// What was done in another way than chosen; each said once (Notes).
  [[nodiscard]] std::vector<std::string> take_notes() { return notes_.take(); }

 private:
  [[nodiscard]] FileVerdict verdict_on(const File& file);

  const ReadMethod method_;
  Notes notes_;  // before the backends, which refer to it
  PreadBackend pread_;
  std::unique_ptr<ReadBackend> cold_;    // for kAuto's cold reads
  std::unique_ptr<ReadBackend> forced_;  // for the other methods

  std::shared_mutex mutex_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, FileVerdict> verdicts_;  // by device and inode
};

}  // namespace lading::io
