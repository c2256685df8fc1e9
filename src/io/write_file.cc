#include "io/write_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "io/file.h"

namespace lading::io {
namespace {

// Who may read it is the umask's matter, as for every file.
constexpr mode_t kMode = 0666;
constexpr int kNamesTried = 16;

Error failed(const std::string& path, std::string message) {
  return Error(Code::kWriteFailed, std::move(message)).in_file(path);
}

Error failed(const std::string& path, int error) {
  return failed(path, fmt::format("could not write the file: {}", errno_text(error)));
}

// The folder, which may be reached through links, and a name in it, which is not followed.
struct Place {
  Fd folder;
  std::string name;
};

Result<Place> place_of(const std::string& path) {
  const std::filesystem::path whole(path);
  const std::string name = whole.filename().string();
  if (name.empty() || name == "." || name == "..") return fail(failed(path, "the path does not name a file"));
  const std::string folder = whole.has_parent_path() ? whole.parent_path().string() : ".";
  Fd fd(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return fail(failed(path, errno));
  return Place{std::move(fd), name};
}

Result<Standing> look(const Place& place, const std::string& path) {
  struct stat status = {};
  if (::fstatat(place.folder.get(), place.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return Standing::kNothing;
    return fail(failed(path, errno));
  }
  if (S_ISREG(status.st_mode)) return Standing::kRegularFile;
  if (S_ISLNK(status.st_mode)) {
    return fail(failed(path, "the path is a symbolic link, and lading does not write through links")
                    .try_this("Pass the path that the link leads to, or remove the link."));
  }
  return fail(
      failed(path, "the path is not a regular file").try_this("Pass the path of a new file, or of a regular file."));
}

// Signals that would end the process wait, so that a file with a temporary name does not stay behind. Those that a
// fault of this thread raises cannot wait.
class SignalsHeld {
 public:
  SignalsHeld() {
    sigset_t all;
    ::sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS}) ::sigdelset(&all, fault);
    ::pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsHeld() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;

 private:
  sigset_t before_ = {};
};

// A name that nobody can have guessed, and taken.
std::string new_name() {
  std::array<std::uint64_t, 2> random = {};
  if (::getrandom(random.data(), sizeof random, 0) != static_cast<ssize_t>(sizeof random)) return "";
  return fmt::format(".lading-{:016x}{:016x}.part", random[0], random[1]);
}

// The functions below return an errno, or 0.

int put(const Fd& fd, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = ::write(fd.get(), content.data(), content.size());
    if (written < 0 && errno != EINTR) return errno;
    if (written > 0) content.remove_prefix(static_cast<std::size_t>(written));
  }
  return ::fsync(fd.get()) == 0 ? 0 : errno;
}

// Gives the file at `temporary` its name; on an error removes it.
int rename_to_place(const Place& place, const std::string& temporary, Overwrite overwrite) {
  const int folder = place.folder.get();
  const unsigned flags = overwrite == Overwrite::kNever ? RENAME_NOREPLACE : 0;
  if (::renameat2(folder, temporary.c_str(), folder, place.name.c_str(), flags) == 0) return 0;
  int error = errno;
  if (overwrite == Overwrite::kNever && (error == EINVAL || error == ENOSYS)) {
    // A file system that cannot rename without replacing: a link never replaces.
    error = ::linkat(folder, temporary.c_str(), folder, place.name.c_str(), 0) == 0 ? 0 : errno;
  }
  ::unlinkat(folder, temporary.c_str(), 0);
  return error;
}

int write_unnamed(const Place& place, std::string_view content, Overwrite overwrite) {
  const Fd fd(::openat(place.folder.get(), ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, kMode));
  if (!fd.valid()) return errno;
  if (const int error = put(fd, content); error != 0) return error;
  const std::string itself = fmt::format("/proc/self/fd/{}", fd.get());
  const auto link_to = [&](const std::string& name) {
    return ::linkat(AT_FDCWD, itself.c_str(), place.folder.get(), name.c_str(), AT_SYMLINK_FOLLOW) == 0 ? 0 : errno;
  };
  if (overwrite == Overwrite::kNever) return link_to(place.name);
  const std::string temporary = new_name();  // a link does not replace, a rename does
  const SignalsHeld held;
  if (const int error = link_to(temporary); error != 0) return error;
  return rename_to_place(place, temporary, overwrite);
}

int write_named(const Place& place, std::string_view content, Overwrite overwrite) {
  const SignalsHeld held;
  for (int i = 0; i < kNamesTried; ++i) {
    const std::string temporary = new_name();
    const int flags = O_CREAT | O_EXCL | O_NOFOLLOW | O_WRONLY | O_CLOEXEC;
    const Fd fd(::openat(place.folder.get(), temporary.c_str(), flags, kMode));
    if (!fd.valid() && errno == EEXIST) continue;
    if (!fd.valid()) return errno;
    if (const int error = put(fd, content); error != 0) {
      ::unlinkat(place.folder.get(), temporary.c_str(), 0);
      return error;
    }
    return rename_to_place(place, temporary, overwrite);
  }
  return EEXIST;
}

// The name itself is durable only with its folder; not every file system can sync one.
void sync_folder(const Place& place) {
  const Fd folder(::openat(place.folder.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.valid()) (void)::fsync(folder.get());
}

}  // namespace

Result<Standing> what_stands_at(const std::string& path) {
  LADING_ASSIGN_OR_RETURN(const Place place, place_of(path));
  if (::faccessat(place.folder.get(), ".", W_OK | X_OK, 0) != 0) return fail(failed(path, errno));
  return look(place, path);
}

Result<void> write_file(const std::string& path, std::string_view content, const WriteOptions& options) {
  LADING_ASSIGN_OR_RETURN(const Place place, place_of(path));
  LADING_ASSIGN_OR_RETURN(const Standing standing, look(place, path));
  if (standing == Standing::kRegularFile && options.overwrite == Overwrite::kNever) return fail(failed(path, EEXIST));
  // What appears at an empty place from now on is not overwritten either.
  const Overwrite overwrite = standing == Standing::kNothing ? Overwrite::kNever : options.overwrite;
  int error = ENOTSUP;
  if (options.temporary == Temporary::kUnnamed) error = write_unnamed(place, content, overwrite);
  // Whatever the reason was: a file system without O_TMPFILE says so in many ways, and the others fail again.
  if (error != 0 && error != EEXIST) error = write_named(place, content, overwrite);
  if (error != 0) return fail(failed(path, error));
  sync_folder(place);
  return {};
}

}  // namespace lading::io
