// File: a regular file opened for reading, and the repository's only loop around short reads.
//
// Move-only; the descriptor is closed at the end. read_exact may be called from many threads.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>

#include "lading/result.h"

namespace lading::io {

/// A file descriptor that is closed at the end.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept;
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd();

  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// What makes a file the same file, unchanged: compared after a load (R45).
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size_bytes = 0;
  std::int64_t mtime_s = 0;
  std::int64_t mtime_ns = 0;  ///< below a second

  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

class File {
 public:
  /// Takes an open descriptor; refuses what is not a regular file. `path` is for messages.
  static Result<File> adopt(Fd fd, std::string path);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return identity_.size_bytes; }
  [[nodiscard]] const FileIdentity& identity() const { return identity_; }

  /// Fills `out` from `offset_bytes` on, or fails; never less. The end of the file is an error.
  Result<void> read_exact(std::uint64_t offset_bytes, std::span<char> out) const;

  /// Fails if the file is no longer what it was when it was opened.
  Result<void> check_unchanged() const;

 private:
  File(Fd fd, std::string path, FileIdentity identity)
      : fd_(std::move(fd)), path_(std::move(path)), identity_(identity) {}

  Fd fd_;
  std::string path_;
  FileIdentity identity_;
};

/// "No such file or directory (2)"
[[nodiscard]] std::string errno_text(int error);

}  // namespace lading::io
