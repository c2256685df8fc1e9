// Writers: whether somebody may be writing to a file at this moment.
//
// A write changes the mtime when it begins, not while its bytes arrive. A file that is opened in between shows the same
// size and times for as long as the write goes on, and check_unchanged finds nothing. So a reader asks, before its
// first read, whether a write can be under way. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>

#include "io/file.h"

namespace lading::io {

enum class Writers : std::uint8_t {
  kNone,     ///< no process has the file open for writing
  kSome,     ///< a process has
  kUnknown,  ///< the file system does not know, or does not tell this user
};

/// Asks the kernel for a read lease, which it grants only if no process has the file open for writing, and gives the
/// lease back at once. Only local file systems know: of others the answer is kUnknown.
[[nodiscard]] Writers writers_of(const File& file);

/// Whether no write that began before this call can still be under way, and every later write changes the mtime that
/// `file` was opened with: then check_unchanged finds every later write. Waits a few milliseconds where the mtime is
/// from the present tick of the kernel's clock. Where writers are unknown, the mtime must be a minute old.
[[nodiscard]] bool is_settled(const File& file);

/// A write that a load may have met is given this long to end.
inline constexpr std::chrono::milliseconds kWriteTime{2000};

/// How long until the file's mtime is kWriteTime old; at most kWriteTime, whatever the clock of the file system says.
[[nodiscard]] std::chrono::milliseconds time_to_settle(const FileIdentity& identity);

}  // namespace lading::io
