// What can be known of where a file's bytes are: in memory already or not, and on what kind of file system.
//
// Nothing here reads the file's pages in, maps them readably or fails a load: what cannot be found out is unknown.
// A file may shrink meanwhile without harm. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "io/file.h"
#include "lading/byte_range.h"

namespace lading::io {

struct Residency {
  std::uint64_t resident_pages = 0;  ///< in the page cache
  std::uint64_t pages = 0;           ///< looked at; 0 for an empty range

  /// 1 for an empty range: there is nothing to wait for.
  [[nodiscard]] double share() const {
    return pages == 0 ? 1.0 : static_cast<double>(resident_pages) / static_cast<double>(pages);
  }
};

enum class ResidencyMethod : std::uint8_t {
  kCachestat,  ///< Linux 6.5; the file's owner or who may write it
  kMincore,    ///< the same people; to others it would say "all", so they get nothing
  kSample,     ///< reads single bytes that must not wait, from up to 32 places; for everybody
};

/// By the first method that works; nothing if none does. The range is cut to the file.
[[nodiscard]] std::optional<Residency> residency(const File& file, ByteRange range);
/// Of a whole file, from a few windows spread over it where it is large: counting every page of a large file takes
/// milliseconds, and a load begins with it.
[[nodiscard]] std::optional<Residency> residency_at_a_glance(const File& file);
/// By one method only.
[[nodiscard]] std::optional<Residency> residency_by(ResidencyMethod method, const File& file, ByteRange range);

enum class FileSystem : std::uint8_t {
  kMemory,  ///< tmpfs, ramfs, hugetlbfs: always in memory
  kExt,     ///< ext2, ext3, ext4
  kXfs,
  kBtrfs,
  kF2fs,
  kZfs,
  kOverlay,  ///< containers' images; its own page cache is empty, the lower file's is not
  kNetwork,  ///< NFS, SMB, Ceph, Lustre, GPFS, 9p, AFS
  kFuse,
  kOther,  ///< anything else, or not to be found out
};

[[nodiscard]] FileSystem file_system_of(const File& file);
/// Of any open descriptor, directories too.
[[nodiscard]] FileSystem file_system_of(int descriptor);
/// "ext", "overlay", …
[[nodiscard]] std::string_view word(FileSystem kind);

}  // namespace lading::io
