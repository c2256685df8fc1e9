#include "io/new_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <utility>

namespace lading::io {
namespace {

// Who may read it is the umask's matter.
constexpr mode_t kFileMode = 0666;
constexpr mode_t kFolderMode = 0777;
constexpr int kDirectoryFlags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
constexpr std::size_t kRandomDigits = 16;
constexpr int kTemporaryNamesTried = 16;

Error failed_at(const std::string& path, std::string_view what, int error) {
  Error made = Error(Code::kWriteFailed, fmt::format("could not {}: {}", what, errno_text(error))).in_file(path);
  switch (error) {
    case ENOSPC:
    case EDQUOT: made.remedy = "Free space, or save to another file system."; break;
    case EROFS:
    case EACCES:
    case EPERM: made.remedy = "Save to a directory that you can write to."; break;
    case EIO: made.remedy = "Check the disk, and save to another one."; break;
    default: made.remedy = "Save again, or to another directory."; break;
  }
  return made;
}

Error refused(const std::string& path, std::string message, std::string remedy) {
  return Error(Code::kUsage, std::move(message)).in_file(path).try_this(std::move(remedy));
}

std::string prefix_of(const std::string& name) { return fmt::format(".lading-save.{}.", name); }

bool is_of(std::string_view temporary, const std::string& name) {
  const std::string prefix = prefix_of(name);
  if (temporary.size() != prefix.size() + kRandomDigits || !temporary.starts_with(prefix)) return false;
  const std::string_view digits = temporary.substr(prefix.size());
  return std::all_of(digits.begin(), digits.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

struct NewPlace {
  Fd parent;
  std::string parent_path;
  std::string name;
};

Result<NewPlace> new_place_of(const std::string& path) {
  std::filesystem::path whole(path);
  if (!whole.has_filename()) whole = whole.parent_path();  // a slash at the end
  const std::string name = whole.filename().string();
  if (name.empty() || name == "." || name == "..") {
    return fail(refused(path, "the path does not name a new directory", "Pass the path of a directory to be made."));
  }
  std::string parent = whole.has_parent_path() ? whole.parent_path().string() : ".";
  Fd fd(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return fail(failed_at(parent, "open the directory to save in", errno));
  return NewPlace{std::move(fd), std::move(parent), name};
}

// The names in a directory, without "." and "..".
Result<std::vector<std::string>, int> names_in(int directory) {
  Fd again(::openat(directory, ".", kDirectoryFlags));
  if (!again.valid()) return fail(errno);
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::fdopendir(::dup(again.get())), &::closedir);
  if (listing == nullptr) return fail(errno);
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(listing.get());
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) return fail(errno);
  std::sort(names.begin(), names.end());
  return names;
}

// Removes what stands at the name, and all below it. Follows no link. Gives an errno, or 0.
int remove_tree(int parent, const std::string& name) {
  if (::unlinkat(parent, name.c_str(), 0) == 0) return 0;
  if (errno != EISDIR && errno != EPERM) return errno;
  const Fd directory(::openat(parent, name.c_str(), kDirectoryFlags));
  if (!directory.valid()) return errno;
  const auto names = names_in(directory.get());
  if (!names) return names.error();
  for (const std::string& below : *names) {
    if (const int error = remove_tree(directory.get(), below); error != 0) return error;
  }
  return ::unlinkat(parent, name.c_str(), AT_REMOVEDIR) == 0 ? 0 : errno;
}

// Syncs all below it, then itself. Gives an errno, or 0.
int sync_tree(int directory) {
  const auto names = names_in(directory);
  if (!names) return names.error();
  for (const std::string& name : *names) {
    struct stat status = {};
    if (::fstatat(directory, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return errno;
    const bool is_folder = S_ISDIR(status.st_mode);
    if (!is_folder && !S_ISREG(status.st_mode)) continue;
    const Fd below(::openat(directory, name.c_str(),
                            is_folder ? kDirectoryFlags : O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!below.valid()) return errno;
    if (is_folder) {
      if (const int error = sync_tree(below.get()); error != 0) return error;
    } else if (::fsync(below.get()) != 0) {
      return errno;
    }
  }
  return ::fsync(directory) == 0 ? 0 : errno;
}

// The folder of a relative name, and the name in it; folders on the way are made if they may be.
enum class Folders : std::uint8_t { kExist, kMake };
struct InFolder {
  Fd folder;
  std::string name;
};
Result<InFolder, int> walk(int directory, std::string_view relative, Folders folders) {
  Fd at(::openat(directory, ".", kDirectoryFlags));
  if (!at.valid()) return fail(errno);
  for (std::size_t slash = relative.find('/'); slash != std::string_view::npos; slash = relative.find('/')) {
    const std::string name(relative.substr(0, slash));
    relative.remove_prefix(slash + 1);
    if (name.empty() || name == "." || name == "..") return fail(EINVAL);
    if (folders == Folders::kMake && ::mkdirat(at.get(), name.c_str(), kFolderMode) != 0 && errno != EEXIST) {
      return fail(errno);
    }
    Fd below(::openat(at.get(), name.c_str(), kDirectoryFlags));
    if (!below.valid()) return fail(errno);
    at = std::move(below);
  }
  if (relative.empty() || relative == "." || relative == "..") return fail(EINVAL);
  return InFolder{std::move(at), std::string(relative)};
}

int reserve(int fd, std::uint64_t size_bytes) {
  if (size_bytes == 0) return 0;
  int error = 0;
  do {
    error = ::fallocate(fd, 0, 0, static_cast<off_t>(size_bytes)) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error != EOPNOTSUPP && error != ENOSYS) return error;
  return ::ftruncate(fd, static_cast<off_t>(size_bytes)) == 0 ? 0 : errno;
}

}  // namespace

Error NewDirectory::failed(std::string_view what, std::string_view name, int error) const {
  return failed_at(fmt::format("{}/{}", parent_path_, name), what, error);
}

std::string NewDirectory::path() const {
  // Not made normal: in "link/..", the kernel follows the link first.
  return (std::filesystem::absolute(parent_path_) / temporary_).string();
}
std::string NewDirectory::path_of(std::string_view relative) const {
  return fmt::format("{}/{}/{}", parent_path_, temporary_, relative);
}

Result<NewDirectory> NewDirectory::create(const std::string& place, IfExists if_exists) {
  LADING_ASSIGN_OR_RETURN(NewPlace found, new_place_of(place));
  NewDirectory made(std::move(found.parent), std::move(found.parent_path), std::move(found.name), "");
  LADING_TRY(made.check_place(if_exists));
  LADING_TRY(made.remove_leftovers());
  LADING_TRY(made.make());
  if (if_exists == IfExists::kReplace) {
    if (auto checked = made.check_exchange(); !checked) {
      (void)made.discard();
      return fail(std::move(checked).error());
    }
  }
  return made;
}

Result<NewDirectory> NewDirectory::named(const std::string& place, const std::string& temporary) {
  LADING_ASSIGN_OR_RETURN(NewPlace found, new_place_of(place));
  if (!is_of(temporary, found.name)) {
    return fail(refused(place, "the name is not one of a temporary directory of this place",
                        "Pass the name that the first step returned."));
  }
  return NewDirectory(std::move(found.parent), std::move(found.parent_path), std::move(found.name), temporary);
}

Result<NewDirectory> NewDirectory::open(const std::string& place, const std::string& temporary) {
  LADING_ASSIGN_OR_RETURN(NewDirectory opened, named(place, temporary));
  opened.directory_ = Fd(::openat(opened.parent_.get(), temporary.c_str(), kDirectoryFlags));
  if (!opened.directory_.valid()) return fail(opened.failed("open the temporary directory", temporary, errno));
  return opened;
}

Result<bool> NewDirectory::discard(const std::string& place, const std::string& temporary) {
  LADING_ASSIGN_OR_RETURN(NewDirectory named_one, named(place, temporary));
  return named_one.discard();
}

Result<void> NewDirectory::check_place(IfExists if_exists) const {
  struct stat status = {};
  const std::string path = fmt::format("{}/{}", parent_path_, name_);
  const std::size_t added = prefix_of("").size() + kRandomDigits;
  const auto longest = ::fpathconf(parent_.get(), _PC_NAME_MAX);
  if (longest > 0 && name_.size() + added > static_cast<std::size_t>(longest)) {
    return fail(refused(path, "the directory's name is too long: a longer one is needed beside it while it is written",
                        "Pass a path with a shorter last name.")
                    .wanted(fmt::format("at most {} bytes", static_cast<std::size_t>(longest) - added))
                    .got(fmt::format("{} bytes", name_.size())));
  }
  if (::faccessat(parent_.get(), ".", W_OK | X_OK, 0) != 0) {
    return fail(failed_at(parent_path_, "write to the directory to save in", errno));
  }
  if (::fstatat(parent_.get(), name_.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return {};
    return fail(failed("look at the place", name_, errno));
  }
  if (if_exists == IfExists::kRefuse) {
    return fail(refused(path, "something stands at this path already",
                        "Pass another path, or replace the directory (exist=\"replace\", --exist replace)."));
  }
  if (!S_ISDIR(status.st_mode)) {
    return fail(refused(path, "what is to be replaced is not a directory", "Pass another path."));
  }
  return {};
}

// One that is locked belongs to a save that is under way.
Result<void> NewDirectory::remove_leftovers() {
  const auto names = names_in(parent_.get());
  if (!names) return fail(failed_at(parent_path_, "list the directory to save in", names.error()));
  for (const std::string& name : *names) {
    if (!is_of(name, name_)) continue;
    const Fd leftover(::openat(parent_.get(), name.c_str(), kDirectoryFlags));
    if (!leftover.valid() || ::flock(leftover.get(), LOCK_EX | LOCK_NB) != 0) continue;
    LADING_TRY(sync_parent());
    const int error = remove_tree(parent_.get(), name);
    if (error == ENOENT) continue;  // another save removes it too
    if (error != 0) return fail(failed("remove what an earlier save left", name, error));
    removed_.push_back(name);
  }
  return {};
}

Result<void> NewDirectory::make() {
  for (int i = 0; i < kTemporaryNamesTried; ++i) {
    std::uint64_t random = 0;
    if (::getrandom(&random, sizeof random, 0) != static_cast<ssize_t>(sizeof random)) {
      return fail(failed("choose a name for the temporary directory", name_, errno));
    }
    temporary_ = fmt::format("{}{:016x}", prefix_of(name_), random);
    if (::mkdirat(parent_.get(), temporary_.c_str(), kFolderMode) != 0) {
      if (errno == EEXIST) continue;
      return fail(failed("make the temporary directory", temporary_, errno));
    }
    directory_ = Fd(::openat(parent_.get(), temporary_.c_str(), kDirectoryFlags));
    if (!directory_.valid()) return fail(failed("open the temporary directory", temporary_, errno));
    // Where a file system has no locks, nobody else has one either.
    (void)::flock(directory_.get(), LOCK_EX | LOCK_NB);
    return {};
  }
  return fail(failed("make the temporary directory", temporary_, EEXIST));
}

// Before anything is written: not every file system can exchange two names.
Result<void> NewDirectory::check_exchange() const {
  const int at = directory_.get();
  const bool are_made = ::mkdirat(at, "a", kFolderMode) == 0 && ::mkdirat(at, "b", kFolderMode) == 0;
  int error = are_made ? 0 : errno;
  if (are_made && ::renameat2(at, "a", at, "b", RENAME_EXCHANGE) != 0) error = errno;
  for (const char* const name : {"a", "b"}) {
    if (::unlinkat(at, name, AT_REMOVEDIR) != 0 && error == 0) error = errno;
  }
  if (error == 0) return {};
  if (error == EINVAL || error == ENOSYS || error == EOPNOTSUPP) {
    return fail(Error(Code::kUsage, "the file system cannot exchange two directories in one step")
                    .in_file(fmt::format("{}/{}", parent_path_, name_))
                    .try_this("Save to a new path, and remove the old directory afterwards."));
  }
  return fail(failed("exchange two directories", temporary_, error));
}

Result<Fd> NewDirectory::create_file(std::string_view relative, std::uint64_t size_bytes) const {
  const auto in = walk(directory_.get(), relative, Folders::kMake);
  if (!in) return fail(failed_at(path_of(relative), "make the file's folder", in.error()));
  Fd fd(::openat(in->folder.get(), in->name.c_str(), O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR | O_CLOEXEC, kFileMode));
  if (!fd.valid()) return fail(failed_at(path_of(relative), "make the file", errno));
  if (const int error = reserve(fd.get(), size_bytes); error != 0) {
    return fail(failed_at(path_of(relative), "reserve the file's space", error));
  }
  return fd;
}

Result<Fd> NewDirectory::open_file(std::string_view relative, std::uint64_t size_bytes) const {
  const auto in = walk(directory_.get(), relative, Folders::kExist);
  if (!in) return fail(failed_at(path_of(relative), "open the file's folder", in.error()));
  Fd fd(::openat(in->folder.get(), in->name.c_str(), O_NOFOLLOW | O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return fail(failed_at(path_of(relative), "open the file", errno));
  struct stat status = {};
  if (::fstat(fd.get(), &status) != 0) return fail(failed_at(path_of(relative), "look at the file", errno));
  if (!S_ISREG(status.st_mode) || static_cast<std::uint64_t>(status.st_size) != size_bytes) {
    return fail(Error(Code::kWriteFailed, "the file is not the one that was made for this save")
                    .in_file(path_of(relative))
                    .wanted(fmt::format("{} bytes", size_bytes))
                    .got(fmt::format("{} bytes", status.st_size))
                    .try_this("Save again when no other program writes to the directory."));
  }
  return fd;
}

Result<void> NewDirectory::write_file(std::string_view relative, std::string_view content) const {
  LADING_ASSIGN_OR_RETURN(const Fd fd, create_file(relative, 0));
  LADING_TRY(write_exact(fd.get(), 0, std::as_bytes(std::span(content)), path_of(relative)));
  return sync_file(fd.get(), path_of(relative));
}

Result<void> NewDirectory::remove_file(std::string_view relative) const {
  const auto in = walk(directory_.get(), relative, Folders::kExist);
  if (!in) return fail(failed_at(path_of(relative), "open the file's folder", in.error()));
  if (::unlinkat(in->folder.get(), in->name.c_str(), 0) == 0) return {};
  return fail(failed_at(path_of(relative), "remove the file", errno));
}

Result<void> NewDirectory::sync() const {
  if (const int error = sync_tree(directory_.get()); error != 0) {
    return fail(failed("sync the directory", temporary_, error));
  }
  return {};
}

Result<bool> NewDirectory::commit(IfExists if_exists) {
  const int parent = parent_.get();
  const char* const from = temporary_.c_str();
  const char* const to = name_.c_str();
  bool replaced = false;
  int error = ::renameat2(parent, from, parent, to, RENAME_NOREPLACE) == 0 ? 0 : errno;
  if (error == EINVAL || error == ENOSYS) {
    // A file system that cannot rename without replacing: what appears here meanwhile is replaced if it is empty.
    struct stat status = {};
    error = EEXIST;
    if (::fstatat(parent, to, &status, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT) {
      error = ::renameat(parent, from, parent, to) == 0 ? 0 : errno;
    }
  }
  if (error == EEXIST && if_exists == IfExists::kReplace) {
    error = ::renameat2(parent, from, parent, to, RENAME_EXCHANGE) == 0 ? 0 : errno;
    replaced = error == 0;
  }
  if (error == EEXIST) {
    return fail(refused(fmt::format("{}/{}", parent_path_, name_), "something stands at this path by now",
                        "Pass another path, or replace the directory (exist=\"replace\", --exist replace)."));
  }
  if (error != 0) return fail(failed("put the new directory in place", name_, error));
  LADING_TRY(sync_parent());
  if (replaced) {
    // The new one stands. What is left of the old one is removed by the next save.
    (void)remove_tree(parent, temporary_);
  }
  return replaced;
}

// The old checkpoint may have the temporary name by now, if a process that exchanged the two was killed or could not
// sync. Until the exchange is on the disk, a power loss brings the old one back to its place, so its files must stay.
Result<void> NewDirectory::sync_parent() const {
  if (::fsync(parent_.get()) == 0) return {};
  return fail(failed("sync the directory that the checkpoint is in", name_, errno));
}

Result<bool> NewDirectory::discard() {
  LADING_TRY(sync_parent());
  const int error = remove_tree(parent_.get(), temporary_);
  if (error == 0 || error == ENOENT) return error == 0;
  return fail(failed("remove the temporary directory", temporary_, error));
}

Result<void> write_exact(int descriptor, std::uint64_t offset_bytes, std::span<const std::byte> bytes,
                         const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset_bytes));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return fail(failed_at(path, "write to the file", written < 0 ? errno : EIO));
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset_bytes += static_cast<std::uint64_t>(written);
  }
  return {};
}

void begin_sync(int descriptor, std::uint64_t offset_bytes, std::uint64_t size_bytes) {
  (void)::sync_file_range(descriptor, static_cast<off64_t>(offset_bytes), static_cast<off64_t>(size_bytes),
                          SYNC_FILE_RANGE_WRITE);
}

Result<void> sync_file(int descriptor, const std::string& path) {
  int error = 0;
  do {
    error = ::fsync(descriptor) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error != 0) return fail(failed_at(path, "sync the file", error));
  return {};
}

}  // namespace lading::io
