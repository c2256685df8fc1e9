// File: a regular file opened for reading, and what makes it still the same file.
//
// Move-only; its descriptors are closed at the end. All const members may be called from many threads. The bytes
// come through a ReadBackend (io/read_backend.h); read_exact (io/read_exact.h) is the only loop around short reads.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

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

/// What makes a file the same file, unchanged: compared after a load (R45). The ctime is left out: links, owners
/// and modes change it while the bytes stay. A new ctime only makes a load read the file twice
/// (docs/how-it-works/io.md).
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size_bytes = 0;
  std::int64_t mtime_s = 0;
  std::int64_t mtime_ns = 0;  ///< below a second

  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

/// A time of a file's inode.
struct FileTime {
  std::int64_t seconds = 0;
  std::int64_t nanoseconds = 0;  ///< below a second

  friend bool operator==(const FileTime&, const FileTime&) = default;
};

/// Where a file was found: the way can be walked again, to see whether it still leads to the same file.
class FileOrigin {
 public:
  virtual ~FileOrigin() = default;
  /// An O_PATH descriptor of what is there now, or kNotFound.
  [[nodiscard]] virtual Result<Fd> look() const = 0;
  /// Opens what is there now for reading.
  [[nodiscard]] virtual Result<Fd> open() const = 0;
};

class File {
 public:
  /// Takes an open descriptor; refuses what is not a regular file. `path` is for messages. Without an origin,
  /// check_unchanged looks at the descriptor only.
  static Result<File> adopt(Fd fd, std::string path, std::shared_ptr<const FileOrigin> origin = nullptr);

  File(File&&) noexcept;
  File& operator=(File&&) noexcept;
  ~File();

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return identity_.size_bytes; }
  [[nodiscard]] const FileIdentity& identity() const { return identity_; }
  /// The ctime when the file was opened.
  [[nodiscard]] const FileTime& changed_at() const { return changed_at_; }

  /// A write may have been under way when the file's first byte was read: check_unchanged cannot see such a write.
  void doubt() { is_doubtful_ = true; }
  /// Whether that was said, or the ctime has changed since the file was opened.
  [[nodiscard]] bool is_doubtful() const;

  /// Fills `out` from `offset_bytes` on, or fails; never less. The end of the file is an error. Buffered.
  Result<void> read_exact(std::uint64_t offset_bytes, std::span<char> out) const;

  /// Fails if the file is no longer what it was when it was opened, or if its path leads to another one by now.
  Result<void> check_unchanged() const;

  /// For backends. Stays the same number, also after reopen_after.
  [[nodiscard]] int descriptor() const;
  /// The same file with O_DIRECT, opened by the first call; or, for good, the negated errno of why there is none.
  [[nodiscard]] int direct_descriptor() const;
  /// From now on direct_descriptor answers -`error`: the kernel took the descriptor but not the reads.
  void refuse_direct(int error) const;

  /// How often the file was reopened: to be asked before a read that may find it stale.
  [[nodiscard]] unsigned generation() const;
  /// Opens the file again behind the same descriptors, if nobody has since `generation`. Once in a file's life, and
  /// only if it is still the same file; otherwise an error.
  Result<void> reopen_after(unsigned generation) const;

 private:
  struct Descriptors;
  File(std::unique_ptr<Descriptors> descriptors, std::string path, FileIdentity identity, FileTime changed_at);
  [[nodiscard]] Result<Fd> open_again() const;

  std::unique_ptr<Descriptors> descriptors_;
  std::string path_;
  FileIdentity identity_;
  FileTime changed_at_;
  bool is_doubtful_ = false;
  std::shared_ptr<const FileOrigin> origin_;
};

/// "No such file or directory (2)"
[[nodiscard]] std::string errno_text(int error);

}  // namespace lading::io
