#include "io/residency.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

namespace lading::io {
namespace {

// Younger than Debian 12's headers; the number is the same on every architecture since it was introduced.
constexpr long kCachestatCall = 451;

struct CachestatRange {
  std::uint64_t offset_bytes;
  std::uint64_t size_bytes;
};

struct CachestatAnswer {
  std::uint64_t cached;
  std::uint64_t dirty;
  std::uint64_t writeback;
  std::uint64_t evicted;
  std::uint64_t recently_evicted;
};

// mincore looks at this much at a time: its answer has a byte per page.
constexpr std::uint64_t kMincoreBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kSamples = 32;

std::uint64_t page_bytes() {
  static const auto size = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

// Pages that hold a byte of the range, as [first, last).
struct Pages {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  [[nodiscard]] std::uint64_t count() const { return last - first; }
};

Pages pages_of(const File& file, ByteRange range) {
  const std::uint64_t end = std::min(range.end, file.size_bytes());
  if (range.begin >= end) return {};
  return {range.begin / page_bytes(), (end + page_bytes() - 1) / page_bytes()};
}

std::optional<Residency> by_cachestat(const File& file, Pages pages) {
  CachestatRange range{pages.first * page_bytes(), pages.count() * page_bytes()};
  CachestatAnswer answer{};
  if (::syscall(kCachestatCall, file.descriptor(), &range, &answer, 0U) != 0) return std::nullopt;
  return Residency{std::min(answer.cached, pages.count()), pages.count()};
}

// To people who could not change the file the kernel answers "all resident", so that they cannot watch others.
bool may_ask_mincore(const File& file) {
  struct stat status {};
  if (::fstat(file.descriptor(), &status) != 0) return false;
  if (status.st_uid == ::geteuid()) return true;
  const std::string link = fmt::format("/proc/self/fd/{}", file.descriptor());
  return ::faccessat(AT_FDCWD, link.c_str(), W_OK, AT_EACCESS) == 0;
}

// The mapping has no rights at all, so that nothing can touch it; past a new end of the file mincore says "no".
std::optional<Residency> by_mincore(const File& file, Pages pages) {
  if (!may_ask_mincore(file)) return std::nullopt;
  Residency sum{0, pages.count()};
  const std::uint64_t step = kMincoreBytes / page_bytes();
  std::vector<unsigned char> answer;
  for (std::uint64_t first = pages.first; first < pages.last; first += step) {
    const std::uint64_t count = std::min(step, pages.last - first);
    const std::size_t size = count * page_bytes();
    void* const map =
        ::mmap(nullptr, size, PROT_NONE, MAP_SHARED, file.descriptor(), static_cast<off_t>(first * page_bytes()));
    if (map == MAP_FAILED) return std::nullopt;
    answer.assign(count, 0);
    const int result = ::mincore(map, size, answer.data());
    ::munmap(map, size);
    if (result != 0) return std::nullopt;
    sum.resident_pages += static_cast<std::uint64_t>(
        std::count_if(answer.begin(), answer.end(), [](unsigned char page) { return (page & 1U) != 0; }));
  }
  return sum;
}

std::optional<Residency> by_sample(const File& file, Pages pages) {
  Residency sum{0, std::min(kSamples, pages.count())};
  for (std::uint64_t i = 0; i < sum.pages; ++i) {
    // The middle of the i-th of equal parts; backwards, so that read-ahead after a miss meets no later sample.
    const std::uint64_t part = sum.pages - 1 - i;
    const std::uint64_t page = pages.first + (2 * part + 1) * pages.count() / (2 * sum.pages);
    char byte = 0;
    iovec place{&byte, 1};
    const ssize_t got = ::preadv2(file.descriptor(), &place, 1, static_cast<off_t>(page * page_bytes()), RWF_NOWAIT);
    if (got < 0 && errno != EAGAIN) return std::nullopt;
    if (got > 0) ++sum.resident_pages;
  }
  return sum;
}

}  // namespace

std::optional<Residency> residency_by(ResidencyMethod method, const File& file, ByteRange range) {
  const Pages pages = pages_of(file, range);
  if (pages.count() == 0) return Residency{};
  switch (method) {
    case ResidencyMethod::kCachestat: return by_cachestat(file, pages);
    case ResidencyMethod::kMincore: return by_mincore(file, pages);
    case ResidencyMethod::kSample: return by_sample(file, pages);
  }
  return std::nullopt;
}

std::optional<Residency> residency(const File& file, ByteRange range) {
  for (const ResidencyMethod method :
       {ResidencyMethod::kCachestat, ResidencyMethod::kMincore, ResidencyMethod::kSample}) {
    if (auto found = residency_by(method, file, range)) return found;
  }
  return std::nullopt;
}

std::optional<Residency> residency_at_a_glance(const File& file) {
  constexpr std::uint64_t kWindows = 64;
  constexpr std::uint64_t kWindowBytes = std::uint64_t{256} << 10;
  const std::uint64_t size_bytes = file.size_bytes();
  if (size_bytes <= 4 * kWindows * kWindowBytes) return residency(file, {0, size_bytes});
  Residency all;
  for (std::uint64_t i = 0; i < kWindows; ++i) {
    const std::uint64_t begin = (size_bytes - kWindowBytes) / (kWindows - 1) * i;
    const auto found = residency(file, {begin, begin + kWindowBytes});
    if (!found) return std::nullopt;
    all.resident_pages += found->resident_pages;
    all.pages += found->pages;
  }
  return all;
}

FileSystem file_system_of(const File& file) { return file_system_of(file.descriptor()); }

FileSystem file_system_of(int descriptor) {
  struct statfs status {};
  int result = -1;
  do {
    result = ::fstatfs(descriptor, &status);
  } while (result != 0 && errno == EINTR);
  if (result != 0) return FileSystem::kOther;
  switch (static_cast<std::uint32_t>(status.f_type)) {
    case TMPFS_MAGIC:
    case RAMFS_MAGIC:
    case HUGETLBFS_MAGIC: return FileSystem::kMemory;
    case EXT4_SUPER_MAGIC: return FileSystem::kExt;
    case XFS_SUPER_MAGIC: return FileSystem::kXfs;
    case BTRFS_SUPER_MAGIC: return FileSystem::kBtrfs;
    case F2FS_SUPER_MAGIC: return FileSystem::kF2fs;
    case 0x2fc12fc1: return FileSystem::kZfs;
    case OVERLAYFS_SUPER_MAGIC: return FileSystem::kOverlay;
    case NFS_SUPER_MAGIC:
    case SMB_SUPER_MAGIC:
    case CIFS_SUPER_MAGIC:
    case SMB2_SUPER_MAGIC:
    case CEPH_SUPER_MAGIC:
    case V9FS_MAGIC:
    case AFS_SUPER_MAGIC:
    case AFS_FS_MAGIC:
    case 0x0bd00bd0:  // Lustre
    case 0x47504653:  // GPFS
      return FileSystem::kNetwork;
    case FUSE_SUPER_MAGIC: return FileSystem::kFuse;
    default: return FileSystem::kOther;
  }
}

std::string_view word(FileSystem kind) {
  switch (kind) {
    case FileSystem::kMemory: return "memory";
    case FileSystem::kExt: return "ext";
    case FileSystem::kXfs: return "xfs";
    case FileSystem::kBtrfs: return "btrfs";
    case FileSystem::kF2fs: return "f2fs";
    case FileSystem::kZfs: return "zfs";
    case FileSystem::kOverlay: return "overlay";
    case FileSystem::kNetwork: return "network";
    case FileSystem::kFuse: return "fuse";
    case FileSystem::kOther: return "other";
  }
  return "other";
}

}  // namespace lading::io
