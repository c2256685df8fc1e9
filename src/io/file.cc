#include "io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <system_error>

#include "io/read_backend.h"
#include "io/read_exact.h"

namespace lading::io {
namespace {

// A direct descriptor that nobody has asked for yet; an errno is at most 4095.
constexpr int kNotOpened = -10'000;

FileIdentity identity_of(const struct stat& status) {
  return {static_cast<std::uint64_t>(status.st_dev), static_cast<std::uint64_t>(status.st_ino),
          static_cast<std::uint64_t>(status.st_size), static_cast<std::int64_t>(status.st_mtim.tv_sec),
          static_cast<std::int64_t>(status.st_mtim.tv_nsec)};
}

FileTime ctime_of(const struct stat& status) {
  return {static_cast<std::int64_t>(status.st_ctim.tv_sec), static_cast<std::int64_t>(status.st_ctim.tv_nsec)};
}

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISCHR(mode)) return "a character device";
  if (S_ISBLK(mode)) return "a block device";
  if (S_ISSOCK(mode)) return "a socket";
  return "something else";
}

// The file behind a descriptor, opened anew: no path is walked, so it cannot become another file.
Fd open_behind(int fd, int flags) {
  const std::string link = fmt::format("/proc/self/fd/{}", fd);
  int opened = -1;
  do {
    opened = ::open(link.c_str(), flags | O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  } while (opened < 0 && errno == EINTR);
  return Fd(opened);
}

// Puts `source`'s file behind the number `target` in one step: reads in flight end on the old file, later ones
// begin on the new one, and the number never belongs to anybody else.
int replace_descriptor(const Fd& source, int target) {
  int result = -1;
  do {
    result = ::dup3(source.get(), target, O_CLOEXEC);
  } while (result < 0 && (errno == EINTR || errno == EBUSY));
  return result < 0 ? errno : 0;
}

constexpr std::string_view kRemedy = "Load again when no other program writes to the checkpoint.";

}  // namespace

struct File::Descriptors {
  explicit Descriptors(Fd opened) : fd(std::move(opened)) {}

  const Fd fd;
  std::mutex mutex;  // for opening: `direct`, and changes of the two below
  Fd direct;
  std::atomic<int> direct_number = kNotOpened;
  std::atomic<unsigned> generation = 0;
};

std::string errno_text(int error) { return fmt::format("{} ({})", std::generic_category().message(error), error); }

Fd& Fd::operator=(Fd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Fd::~Fd() {
  if (valid()) ::close(fd_);
}

File::File(std::unique_ptr<Descriptors> descriptors, std::string path, FileIdentity identity, FileTime changed_at)
    : descriptors_(std::move(descriptors)), path_(std::move(path)), identity_(identity), changed_at_(changed_at) {}
File::File(File&&) noexcept = default;
File& File::operator=(File&&) noexcept = default;
File::~File() = default;

Result<File> File::adopt(Fd fd, std::string path, std::shared_ptr<const FileOrigin> origin) {
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
  File file(std::make_unique<Descriptors>(std::move(fd)), std::move(path), identity_of(status), ctime_of(status));
  file.origin_ = std::move(origin);
  return file;
}

Result<void> File::read_exact(std::uint64_t offset_bytes, std::span<char> out) const {
  PreadBackend backend;
  return io::read_exact(*this, backend, offset_bytes, out);
}

Result<void> File::check_unchanged() const {
  struct stat status {};
  if (::fstat(descriptor(), &status) != 0) {
    return fail(Error(Code::kReadFailed, errno_text(errno)).in_file(path_));
  }
  const FileIdentity now = identity_of(status);
  if (now != identity_) {
    return fail(Error(Code::kFileChanged, "the file changed while it was read")
                    .in_file(path_)
                    .by_rule("R45")
                    .wanted(fmt::format("{} bytes, modified at {}.{:09} s", identity_.size_bytes, identity_.mtime_s,
                                        identity_.mtime_ns))
                    .got(fmt::format("{} bytes, modified at {}.{:09} s", now.size_bytes, now.mtime_s, now.mtime_ns))
                    .try_this(std::string(kRemedy)));
  }
  if (origin_ == nullptr) return {};
  const auto replaced = [&](std::string what) {
    return fail(Error(Code::kFileChanged, "the file was replaced while it was read")
                    .in_file(path_)
                    .by_rule("R45")
                    .wanted(fmt::format("the path to lead to inode {}", identity_.inode))
                    .got(std::move(what))
                    .try_this(std::string(kRemedy)));
  };
  const Result<Fd> there = origin_->look();
  if (!there) {
    if (there.error().code == Code::kNotFound) return replaced("no file at the path");
    if (there.error().code == Code::kOutsideRoot) return replaced("a path that now leads outside the checkpoint");
    return fail(there.error());
  }
  if (::fstat(there->get(), &status) != 0) {
    return fail(Error(Code::kReadFailed, errno_text(errno)).in_file(path_));
  }
  const FileIdentity found = identity_of(status);
  if (found.device == identity_.device && found.inode == identity_.inode) return {};
  return replaced(fmt::format("inode {}", found.inode));
}

bool File::is_doubtful() const {
  struct stat status {};
  return is_doubtful_ || ::fstat(descriptor(), &status) != 0 || ctime_of(status) != changed_at_;
}

int File::descriptor() const { return descriptors_->fd.get(); }

int File::direct_descriptor() const {
  Descriptors& all = *descriptors_;
  int number = all.direct_number.load(std::memory_order_acquire);
  if (number != kNotOpened) return number;
  const std::lock_guard lock(all.mutex);
  number = all.direct_number.load(std::memory_order_relaxed);
  if (number != kNotOpened) return number;
  all.direct = open_behind(all.fd.get(), O_DIRECT);
  number = all.direct.valid() ? all.direct.get() : -errno;
  all.direct_number.store(number, std::memory_order_release);
  return number;
}

void File::refuse_direct(int error) const {
  // The descriptor itself stays open: another thread may be reading through it.
  descriptors_->direct_number.store(-error, std::memory_order_release);
}

unsigned File::generation() const { return descriptors_->generation.load(std::memory_order_acquire); }

Result<Fd> File::open_again() const {
  if (origin_ != nullptr) return origin_->open();
  Fd behind = open_behind(descriptor(), 0);
  if (!behind.valid()) return fail(Error(Code::kOpenFailed, errno_text(errno)).in_file(path_));
  return behind;
}

Result<void> File::reopen_after(unsigned generation) const {
  Descriptors& all = *descriptors_;
  const std::lock_guard lock(all.mutex);
  const unsigned now = all.generation.load(std::memory_order_relaxed);
  if (now != generation) return {};
  if (now > 0) {
    return fail(
        Error(Code::kReadFailed, "the file handle went stale again after lading reopened the file").in_file(path_));
  }
  LADING_ASSIGN_OR_RETURN(const Fd opened, open_again());
  struct stat status {};
  if (::fstat(opened.get(), &status) != 0) return fail(Error(Code::kReadFailed, errno_text(errno)).in_file(path_));
  if (identity_of(status) != identity_) {
    return fail(Error(Code::kFileChanged, "the file handle went stale, and the path leads to another file now")
                    .in_file(path_)
                    .by_rule("R45")
                    .wanted(fmt::format("inode {} with {} bytes", identity_.inode, identity_.size_bytes))
                    .got(fmt::format("inode {} with {} bytes", status.st_ino, status.st_size))
                    .try_this(std::string(kRemedy)));
  }
  if (all.direct.valid()) {
    const Fd direct = open_behind(opened.get(), O_DIRECT);
    const int error = direct.valid() ? replace_descriptor(direct, all.direct.get()) : errno;
    if (error != 0) all.direct_number.store(-error, std::memory_order_release);
  }
  if (const int error = replace_descriptor(opened, all.fd.get()); error != 0) {
    return fail(Error(Code::kOpenFailed, errno_text(error)).in_file(path_));
  }
  all.generation.store(now + 1, std::memory_order_release);
  return {};
}

}  // namespace lading::io
