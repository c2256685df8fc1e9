// Any tree of directories, links and names, and any path into it: what the anchor opens is a regular
// file that really lies beneath it, and for trees without absolute links the kernel's own
// openat2(RESOLVE_BENEATH) agrees.
//
// The input is a list of commands, one byte each plus operands: make a directory, a file or a link,
// or open a path. Names come from a small alphabet, so that links meet what they point to.
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "io/anchor.h"

using namespace lading;
namespace fs = std::filesystem;

namespace {

constexpr std::array<const char*, 8> kNames = {"a", "b", "c", "..", ".", "blobs", "", "a.safetensors"};

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  [[nodiscard]] bool empty() const { return at_ >= size_; }
  std::uint8_t byte() { return empty() ? 0 : data_[at_++]; }
  std::string path() {
    const unsigned parts = byte() % 5;
    std::string path;
    for (unsigned i = 0; i < parts; ++i) path += (i > 0 ? "/" : "") + std::string(kNames[byte() % kNames.size()]);
    return path;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

// A scratch folder on memory: root is what the anchor guards, beside it lies what must not be reached.
const fs::path& scratch() {
  static const fs::path folder = [] {
    std::string pattern =
        (fs::exists("/dev/shm") ? "/dev/shm" : fs::temp_directory_path().string()) + "/lading-fuzz-XXXXXX";
    LADING_CHECK(::mkdtemp(pattern.data()) != nullptr);
    std::atexit([] { fs::remove_all(scratch()); });
    return fs::path(pattern);
  }();
  return folder;
}

// What the kernel opens, as device and inode; nothing if it refuses or cannot say.
struct Kernel {
  bool available = true;
  bool opened = false;
  struct stat status {};
};

Kernel kernel_open(const fs::path& root, const std::string& path) {
  Kernel kernel;
  const io::Fd anchor(::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH;
  const io::Fd fd(
      static_cast<int>(::syscall(SYS_openat2, anchor.get(), path.empty() ? "." : path.c_str(), &how, sizeof how)));
  kernel.available = fd.valid() || (errno != ENOSYS && errno != EPERM);
  kernel.opened = fd.valid() && ::fstat(fd.get(), &kernel.status) == 0;
  return kernel;
}

void open_and_compare(const fs::path& root, const io::Anchor& anchor, const std::string& path, bool absolute_links) {
  const auto file = anchor.open_file(path);
  if (file) {
    // Ask the system where the file really is: it must be beneath the root.
    const auto resolved = anchor.resolve(path);
    LADING_CHECK(resolved.has_value());
    const fs::path real = fs::canonical(root / *resolved);
    LADING_CHECK(real.string().starts_with(fs::canonical(root).string() + "/"));
    struct stat status {};
    LADING_CHECK(::stat(real.c_str(), &status) == 0 && status.st_ino == file->identity().inode);
  }
  if (absolute_links || path.starts_with('/')) return;
  const Kernel kernel = kernel_open(root, path);
  if (!kernel.available) return;
  const bool kernel_has_file = kernel.opened && S_ISREG(kernel.status.st_mode);
  LADING_CHECK(kernel_has_file == file.has_value());
  if (file) LADING_CHECK(kernel.status.st_ino == file->identity().inode);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 96) return 0;
  Input input(data, size);
  const fs::path root = scratch() / "root";
  std::error_code ignored;
  fs::remove_all(root, ignored);
  fs::create_directories(root / "a" / "b");
  fs::create_directories(scratch() / "outside");
  std::fclose(std::fopen((scratch() / "outside" / "a.safetensors").c_str(), "we"));
  const auto anchor = io::Anchor::open(root.string());
  LADING_CHECK(anchor.has_value());
  bool absolute_links = false;
  while (!input.empty()) {
    const unsigned what = input.byte() % 8;
    const std::string place = input.path();
    // Made beneath the root only, and never through a link, so that the tree outside stays as it is.
    if (what < 6 && (place.empty() || place.find("..") != std::string::npos || place.starts_with('/'))) continue;
    if (what < 6 &&
        !fs::weakly_canonical(root / place, ignored).string().starts_with(fs::canonical(root).string() + "/"))
      continue;
    switch (what) {
      case 0: ::mkdir((root / place).c_str(), 0755); break;
      case 1:
        if (std::FILE* f = std::fopen((root / place).c_str(), "wxe")) std::fclose(f);
        break;
      case 2: ::mkfifo((root / place).c_str(), 0600); break;
      case 3: ::symlink(input.path().c_str(), (root / place).c_str()); break;
      case 4: ::symlink((input.path() + "/../outside/a.safetensors").c_str(), (root / place).c_str()); break;
      case 5:
        if (::symlink((scratch() / input.path()).c_str(), (root / place).c_str()) == 0) absolute_links = true;
        break;
      default: open_and_compare(root, *anchor, place, absolute_links); break;
    }
  }
  return 0;
}
