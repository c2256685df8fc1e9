// Reads what the kernel says of itself in text: /proc, /sys and control groups.
//
// Pure: the text is handed in. What cannot be understood is nothing, never an error: these files differ between kernels
// and sandboxes, and some are not there at all.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lading::io {

struct KernelVersion {
  unsigned major = 0;
  unsigned minor = 0;

  friend bool operator==(const KernelVersion&, const KernelVersion&) = default;
  friend bool operator<(const KernelVersion& a, const KernelVersion& b) {
    return a.major != b.major ? a.major < b.major : a.minor < b.minor;
  }
};

/// Of uname's release: "6.1.0-18-amd64".
[[nodiscard]] std::optional<KernelVersion> parse_kernel_version(std::string_view release);

/// A number that stands alone in a file: "0\n". "max" and the like are nothing.
[[nodiscard]] std::optional<std::uint64_t> parse_number(std::string_view text);

enum class HugePages : std::uint8_t {
  kAlways,
  kMadvise,  ///< for those who ask, as lading does
  kNever,
  kAbsent,   ///< a kernel without them
  kUnknown,  ///< a word that is not known
};

/// Of /sys/kernel/mm/transparent_hugepage/enabled: "always [madvise] never".
[[nodiscard]] HugePages parse_huge_pages(std::string_view text);

/// Of "MemAvailable:   123 kB" and the like in /proc/meminfo.
[[nodiscard]] std::optional<std::uint64_t> parse_meminfo_bytes(std::string_view text, std::string_view key);

/// How many processors "Cpus_allowed_list: 0-3,8" in /proc/self/status names.
[[nodiscard]] std::optional<unsigned> parse_allowed_cpus(std::string_view status);

/// The number behind a word: "inactive_file 4096" in a control group's memory.stat.
[[nodiscard]] std::optional<std::uint64_t> parse_stat(std::string_view text, std::string_view key);

/// The share of processors that "200000 100000" in a control group's cpu.max grants; nothing: no limit.
[[nodiscard]] std::optional<double> parse_cpu_max(std::string_view text);

struct Mount {
  std::string device;  ///< "8:1"
  std::string root;    ///< which part of the file system is mounted
  std::string place;
  std::string type;           ///< "ext4", "nfs4", "fuse.sshfs"
  std::string super_options;  ///< of the file system: "rw,memory"
};

/// Of /proc/self/mountinfo; lines that are none are left out.
[[nodiscard]] std::vector<Mount> parse_mounts(std::string_view mountinfo);

/// Where a controller's limits for this process stand: its own group first, then those around it, as far as they can be
/// seen from here. Each may be limited; all limits hold.
struct CgroupPlaces {
  enum class Version : std::uint8_t { kOne, kTwo };
  Version version = Version::kTwo;
  std::vector<std::string> directories;  ///< empty: none found
};

/// `cgroup` is /proc/self/cgroup; `controller` is "memory" or "cpu".
[[nodiscard]] CgroupPlaces cgroup_places(std::string_view cgroup, const std::vector<Mount>& mounts,
                                         std::string_view controller);

}  // namespace lading::io
