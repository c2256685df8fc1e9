#include "io/file.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>

#include "base/checked.h"

namespace lading::io {
namespace {

// One system call never moves more than this on Linux anyway.
constexpr std::size_t kMaxReadBytes = 1U << 30;

// A regular file has no reason to answer EAGAIN for long.
constexpr int kMostRefusals = 100;
constexpr std::chrono::milliseconds kRefusalPause{10};

FileIdentity identity_of(const struct stat& status) {
  return {static_cast<std::uint64_t>(status.st_dev), static_cast<std::uint64_t>(status.st_ino),
          static_cast<std::uint64_t>(status.st_size), static_cast<std::int64_t>(status.st_mtim.tv_sec),
          static_cast<std::int64_t>(status.st_mtim.tv_nsec)};
}

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISCHR(mode)) return "a character device";
  if (S_ISBLK(mode)) return "a block device";
  if (S_ISSOCK(mode)) return "a socket";
  return "something else";
}

}  // namespace

std::string errno_text(int error) { return fmt::format("{} ({})", std::generic_category().message(error), error); }

Fd& Fd::operator=(Fd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Fd::~Fd() {
  if (valid()) ::close(fd_);
}

Result<File> File::adopt(Fd fd, std::string path) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) {
    return fail(Error(Code::kOpenFailed, errno_text(errno)).in_file(path));
  }
  if (!S_ISREG(status.st_mode)) {
    return fail(Error(Code::kNotRegularFile, "not a regular file")
                    .in_file(path)
                    .by_rule("S4")
                    .wanted("a regular file")
                    .got(std::string(kind_of(status.st_mode))));
  }
  return File(std::move(fd), std::move(path), identity_of(status));
}

Result<void> File::read_exact(std::uint64_t offset_bytes, std::span<char> out) const {
  const auto end = checked_add(offset_bytes, out.size());
  if (!end) return fail(Error(Code::kReadFailed, "the place to read from overflows").in_file(path_));
  std::size_t done = 0;
  int refusals = 0;
  while (done < out.size()) {
    const std::size_t want = std::min(out.size() - done, kMaxReadBytes);
    const ssize_t got = ::pread(fd_.get(), out.data() + done, want, static_cast<off_t>(offset_bytes + done));
    if (got > 0) {
      done += static_cast<std::size_t>(got);
    } else if (got == 0) {
      return fail(Error(Code::kFileTruncated, "the file ended while it was read")
                      .in_file(path_)
                      .at({offset_bytes + done, *end})
                      .by_rule("R45")
                      .wanted(fmt::format("{} bytes", identity_.size_bytes))
                      .got(fmt::format("an end at byte {}", offset_bytes + done)));
    } else if (errno == EAGAIN && ++refusals <= kMostRefusals) {
      std::this_thread::sleep_for(kRefusalPause);
    } else if (errno != EINTR) {
      return fail(Error(Code::kReadFailed, fmt::format("reading failed: {}", errno_text(errno)))
                      .in_file(path_)
                      .at({offset_bytes + done, *end}));
    }
  }
  return {};
}

Result<void> File::check_unchanged() const {
  struct stat status {};
  if (::fstat(fd_.get(), &status) != 0) {
    return fail(Error(Code::kReadFailed, errno_text(errno)).in_file(path_));
  }
  const FileIdentity now = identity_of(status);
  if (now == identity_) return {};
  return fail(Error(Code::kFileChanged, "the file changed while it was read")
                  .in_file(path_)
                  .by_rule("R45")
                  .wanted(fmt::format("{} bytes, modified at {}.{:09} s", identity_.size_bytes, identity_.mtime_s,
                                      identity_.mtime_ns))
                  .got(fmt::format("{} bytes, modified at {}.{:09} s", now.size_bytes, now.mtime_s, now.mtime_ns)));
}

}  // namespace lading::io
