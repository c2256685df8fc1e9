// Looks at a directory or a file: what it is on, and whether O_DIRECT works there. A load would read the same way.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "io/machine.h"
#include "io/read_backend.h"

namespace lading::io {
namespace {

namespace fs = std::filesystem;

// How far a file to read from is sought: a home directory may have millions.
constexpr int kMostEntries = 2000;
constexpr int kMostDepth = 4;

struct Block {
  alignas(kDirectBlockBytes) std::array<char, kDirectBlockBytes> bytes{};
};

// 0, or why a block could not be read past the page cache.
int try_direct(const File& file) {
  Notes notes;
  Block block;
  const ReadSome got = make_direct_backend(notes)->read_some(file, 0, block.bytes);
  const int descriptor = file.direct_descriptor();  // a refusal is remembered there
  return descriptor < 0 ? -descriptor : got.error;
}

// A file that nobody can find, and that is gone with its descriptor.
Fd make_nameless(const std::string& directory) {
  Fd fd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (fd.valid()) return fd;
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) return fd;
  // Not on this file system: for a moment it has a name.
  std::string name = directory + "/.lading-doctor-XXXXXX";
  fd = Fd(::mkostemp(name.data(), O_CLOEXEC));
  if (fd.valid()) ::unlink(name.c_str());
  return fd;
}

std::optional<File> make_temporary(const std::string& directory) {
  Fd fd = make_nameless(directory);
  if (!fd.valid()) return std::nullopt;
  const Block block;
  if (::write(fd.get(), block.bytes.data(), block.bytes.size()) != static_cast<ssize_t>(block.bytes.size())) {
    return std::nullopt;
  }
  auto file = File::adopt(std::move(fd), directory);
  return file ? std::optional<File>(*std::move(file)) : std::nullopt;
}

// Links are not followed, and nothing but regular files is opened, so nothing blocks.
std::optional<File> open_regular(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!fd.valid()) return std::nullopt;
  auto file = File::adopt(std::move(fd), path);
  return file ? std::optional<File>(*std::move(file)) : std::nullopt;
}

// Only on the directory's own file system: what is mounted beneath it may be another.
std::optional<File> find_beneath(const std::string& directory, dev_t device) {
  std::error_code error;
  fs::recursive_directory_iterator entry(directory, fs::directory_options::skip_permission_denied, error);
  for (int i = 0; i < kMostEntries && !error && entry != fs::recursive_directory_iterator(); ++i) {
    std::error_code ignored;
    if (entry.depth() >= kMostDepth) entry.disable_recursion_pending();
    if (entry->symlink_status(ignored).type() == fs::file_type::regular) {
      auto file = open_regular(entry->path().string());
      if (file && file->size_bytes() > 0 && file->identity().device == device) return file;
    }
    entry.increment(error);
  }
  return std::nullopt;
}

std::string mount_type_of(dev_t device) {
  const std::string text = kernel_text("/proc/self/mountinfo").value_or("");
  const std::string number = fmt::format("{}:{}", major(device), minor(device));
  for (const Mount& mount : parse_mounts(text)) {
    if (mount.device == number) return mount.type;
  }
  return "";
}

void try_on(const std::optional<File>& file, TriedOn kind, PlaceFacts& facts) {
  if (!file || facts.direct_tried_on != TriedOn::kNothing) return;
  facts.direct_tried_on = kind;
  facts.direct_error = try_direct(*file);
}

}  // namespace

PlaceFacts look_at_file(const File& file) {
  PlaceFacts facts;
  facts.file_system = file_system_of(file);
  facts.mount_type = mount_type_of(file.identity().device);
  facts.direct_tried_on = TriedOn::kFile;
  facts.direct_error = try_direct(file);
  return facts;
}

Result<PlaceFacts> look_at_place(const std::string& path) {
  // No right to read is needed for this much.
  const Fd place(::open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat status {};
  if (!place.valid() || ::fstat(place.get(), &status) != 0) {
    const int error = errno;
    const Code code = error == ENOENT || error == ENOTDIR ? Code::kNotFound : Code::kOpenFailed;
    return fail(Error(code, errno_text(error)).in_file(path));
  }
  PlaceFacts facts;
  facts.file_system = file_system_of(place.get());
  facts.mount_type = mount_type_of(status.st_dev);
  // The path as it was resolved: its last component may be a link, and that is meant.
  const std::string resolved = fmt::format("/proc/self/fd/{}", place.get());
  if (S_ISREG(status.st_mode)) {
    Fd fd(::open(resolved.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (!fd.valid()) return facts;
    if (auto file = File::adopt(std::move(fd), path)) return look_at_file(*file);
    return facts;
  }
  if (!S_ISDIR(status.st_mode)) return facts;
  try_on(make_temporary(path), TriedOn::kTemporary, facts);
  if (facts.direct_tried_on == TriedOn::kNothing) {
    try_on(find_beneath(path, status.st_dev), TriedOn::kBeneath, facts);
  }
  return facts;
}

}  // namespace lading::io
