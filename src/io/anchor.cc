#include "io/anchor.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <memory>

#include "base/text.h"

namespace lading::io {
namespace {

// Linux gives up after as many.
constexpr int kMaxLinks = 40;

struct DirectoryCloser {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

// Pushes the components of `path` in front of `pending`, which is kept in reverse. An empty one is
// ".", so that "file/" is refused like "file/.", as the kernel does.
void push_components(std::string_view path, std::vector<std::string>& pending) {
  std::size_t end = path.size();
  while (true) {
    const std::size_t slash = end == 0 ? std::string_view::npos : path.rfind('/', end - 1);
    const std::size_t begin = slash == std::string_view::npos ? 0 : slash + 1;
    const std::string_view component = path.substr(begin, end - begin);
    pending.emplace_back(component.empty() ? "." : component);
    if (slash == std::string_view::npos) return;
    end = slash;
  }
}

// A signal may end an open before it is done; it is simply tried again.
Fd open_at(int directory, const char* name, int flags) {
  int fd = -1;
  do {
    fd = ::openat(directory, name, flags | O_CLOEXEC);
  } while (fd < 0 && errno == EINTR);
  return Fd(fd);
}

Result<std::string> read_link(int fd, std::string_view display) {
  std::array<char, PATH_MAX> buffer{};
  const ssize_t size = ::readlinkat(fd, "", buffer.data(), buffer.size());
  if (size < 0) return fail(Error(Code::kOpenFailed, errno_text(errno)).in_file(display));
  return std::string(buffer.data(), static_cast<std::size_t>(size));
}

Code code_of(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR: return Code::kNotFound;
    case ELOOP: return Code::kSymlinkLoop;
    default: return Code::kOpenFailed;
  }
}

}  // namespace

// Where a walk has come to: the directories from the anchor down, and what the last name is.
struct Anchor::Walk {
  std::vector<Fd> below;           // opened directories below the anchor
  std::vector<std::string> names;  // their names, and that of `last` if it is not a directory
  Fd last;                         // O_PATH, invalid if the walk ended in a directory
  struct stat status {};           // of `last`

  [[nodiscard]] std::string path() const { return fmt::format("{}", fmt::join(names, "/")); }
};

Result<Anchor> Anchor::open(const std::string& directory) {
  const std::unique_ptr<char, decltype(&std::free)> real(::realpath(directory.c_str(), nullptr), &std::free);
  if (real == nullptr) return fail(Error(code_of(errno), errno_text(errno)).in_file(directory));
  Fd fd(::open(real.get(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return fail(Error(code_of(errno), errno_text(errno)).in_file(directory));
  return Anchor(std::make_shared<const Root>(Root{std::move(fd), real.get()}));
}

std::string Anchor::display(std::string_view relative) const {
  if (relative.empty()) return path();
  return path() == "/" ? fmt::format("/{}", relative) : fmt::format("{}/{}", path(), relative);
}

Result<Anchor::Walk> Anchor::walk(std::string_view relative) const {
  const std::string shown = display(relative);
  const auto outside = [&](std::string what) {
    return fail(
        Error(Code::kOutsideRoot, "the path leads outside the checkpoint")
            .in_file(shown)
            .by_rule("S4")
            .wanted(fmt::format("a file beneath {}", quote(path())))
            .got(std::move(what))
            .try_this(
                "Pass a directory that contains the link's target as the root (--root DIR), if you trust the link."));
  };
  Walk walk;
  std::vector<std::string> pending;
  push_components(relative, pending);
  if (relative.starts_with('/')) return outside("an absolute path");
  if (relative.find('\0') != std::string_view::npos) return outside("a NUL in the path");
  int links = 0;
  while (!pending.empty()) {
    const std::string name = std::move(pending.back());
    pending.pop_back();
    if (walk.last.valid()) return fail(Error(Code::kNotFound, errno_text(ENOTDIR)).in_file(shown));
    if (name == ".") continue;
    if (name == "..") {
      if (walk.below.empty()) return outside("\"..\" above it");
      walk.below.pop_back();
      walk.names.pop_back();
      continue;
    }
    const int parent = walk.below.empty() ? root_->fd.get() : walk.below.back().get();
    Fd fd = open_at(parent, name.c_str(), O_PATH | O_NOFOLLOW);
    struct stat status {};
    if (!fd.valid() || ::fstat(fd.get(), &status) != 0) {
      return fail(Error(code_of(errno), errno_text(errno)).in_file(shown));
    }
    if (S_ISLNK(status.st_mode)) {
      if (++links > kMaxLinks) return fail(Error(Code::kSymlinkLoop, "too many symbolic links").in_file(shown));
      LADING_ASSIGN_OR_RETURN(const std::string target, read_link(fd.get(), shown));
      std::string_view rest = target;
      if (rest.starts_with('/')) {
        const std::string prefix = path() == "/" ? "/" : path() + "/";
        if (!(target + "/").starts_with(prefix)) return outside(fmt::format("a link to {}", quote(target)));
        rest.remove_prefix(std::min(prefix.size(), rest.size()));
        walk.below.clear();
        walk.names.clear();
      }
      push_components(rest, pending);
      continue;
    }
    walk.names.push_back(name);
    if (S_ISDIR(status.st_mode)) {
      walk.below.push_back(std::move(fd));
    } else {
      walk.last = std::move(fd);
      walk.status = status;
    }
  }
  return walk;
}

Result<std::string> Anchor::resolve(std::string_view relative) const {
  LADING_ASSIGN_OR_RETURN(const Walk end, walk(relative));
  return end.path();
}

// The way to a file, walked again from the anchor by the same rules.
class Anchor::Origin final : public FileOrigin {
 public:
  Origin(const Anchor& anchor, std::string_view relative) : anchor_(anchor), relative_(relative) {}

  [[nodiscard]] Result<Fd> look() const override {
    LADING_ASSIGN_OR_RETURN(Walk end, anchor_.walk(relative_));
    if (end.last.valid()) return std::move(end.last);
    return open_at(anchor_.directory_of(end), ".", O_PATH);
  }
  [[nodiscard]] Result<Fd> open() const override {
    LADING_ASSIGN_OR_RETURN(Walk end, anchor_.walk(relative_));
    return anchor_.open_end(std::move(end), relative_);
  }

 private:
  Anchor anchor_;
  std::string relative_;
};

int Anchor::directory_of(const Walk& end) const { return end.below.empty() ? root_->fd.get() : end.below.back().get(); }

// For reading if it is a regular file; otherwise only so that one can tell what it is.
Result<Fd> Anchor::open_end(Walk end, std::string_view relative) const {
  if (end.last.valid() && !S_ISREG(end.status.st_mode)) return std::move(end.last);
  Fd fd = end.last.valid()
              ? open_at(directory_of(end), end.names.back().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY)
              : open_at(directory_of(end), ".", O_PATH);
  if (!fd.valid()) return fail(Error(code_of(errno), errno_text(errno)).in_file(display(relative)));
  return fd;
}

Result<File> Anchor::open_file(std::string_view relative) const {
  LADING_ASSIGN_OR_RETURN(Walk end, walk(relative));
  LADING_ASSIGN_OR_RETURN(Fd fd, open_end(std::move(end), relative));
  // File::adopt refuses what is not a regular file.
  return File::adopt(std::move(fd), display(relative), std::make_shared<const Origin>(*this, relative));
}

Result<std::vector<std::string>> Anchor::list(std::string_view relative_directory) const {
  LADING_ASSIGN_OR_RETURN(const Walk end, walk(relative_directory));
  const std::string shown = display(relative_directory);
  if (end.last.valid()) return fail(Error(Code::kNotFound, errno_text(ENOTDIR)).in_file(shown));
  const int readable = ::openat(directory_of(end), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, DirectoryCloser> directory(readable < 0 ? nullptr : ::fdopendir(readable));
  if (directory == nullptr) return fail(Error(code_of(errno), errno_text(errno)).in_file(shown));
  std::vector<std::string> names;
  errno = 0;  // readdir tells the end from a failure only by it
  while (const dirent* entry = ::readdir(directory.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
    errno = 0;
  }
  if (errno != 0) {
    return fail(
        Error(Code::kReadFailed, fmt::format("reading the directory failed: {}", errno_text(errno))).in_file(shown));
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace lading::io
