#include "io/machine.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <string_view>
#include <thread>
#include <vector>

#include "io/transport.h"

namespace lading::io {
namespace {

// Files in /proc and /sys have no size to trust; none that is read here comes near this.
constexpr std::size_t kMostTextBytes = std::size_t{1} << 20;

std::optional<std::uint64_t> number_in(const std::string& path) {
  const auto text = kernel_text(path);
  return text ? parse_number(*text) : std::nullopt;
}

KernelVersion look_at_kernel() {
  utsname names{};
  if (::uname(&names) != 0) return {};
  return parse_kernel_version(names.release).value_or(KernelVersion{});
}

UringFacts look_at_uring() {
  UringFacts facts;
  const std::optional<int> tried = try_ring({});
  facts.is_in_build = tried.has_value();
  facts.error = tried.value_or(0);
  facts.disabled = number_in("/proc/sys/kernel/io_uring_disabled");
  return facts;
}

std::optional<std::uint64_t> bound(rlim_t value) {
  return value == RLIM_INFINITY ? std::nullopt : std::optional<std::uint64_t>(value);
}

Limit limit_of(decltype(RLIMIT_MEMLOCK) resource) {
  rlimit found{RLIM_INFINITY, RLIM_INFINITY};
  ::getrlimit(resource, &found);
  return {bound(found.rlim_cur), bound(found.rlim_max)};
}

HugePages look_at_huge_pages() {
  if (::prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1) return HugePages::kNever;
  const auto text = kernel_text("/sys/kernel/mm/transparent_hugepage/enabled");
  return text ? parse_huge_pages(*text) : HugePages::kAbsent;
}

CgroupPlaces places_of(const std::string& root, std::string_view controller) {
  const auto cgroup = kernel_text(root + "/proc/self/cgroup");
  const auto mountinfo = kernel_text(root + "/proc/self/mountinfo");
  if (!cgroup || !mountinfo) return {};
  return cgroup_places(*cgroup, parse_mounts(*mountinfo), controller);
}

struct GroupMemory {
  std::uint64_t limit_bytes = 0;
  std::uint64_t available_bytes = 0;
};

// Pages of files count as used, but the kernel gives them up when the group needs memory.
std::optional<GroupMemory> group_memory(const std::string& directory, CgroupPlaces::Version version) {
  const bool is_old = version == CgroupPlaces::Version::kOne;
  const auto limit = number_in(directory + (is_old ? "/memory.limit_in_bytes" : "/memory.max"));
  const auto used = number_in(directory + (is_old ? "/memory.usage_in_bytes" : "/memory.current"));
  if (!limit || !used) return std::nullopt;
  const std::string stat = kernel_text(directory + "/memory.stat").value_or("");
  const std::string prefix = is_old ? "total_" : "";
  const std::uint64_t cached =
      parse_stat(stat, prefix + "inactive_file").value_or(0) + parse_stat(stat, prefix + "active_file").value_or(0);
  const std::uint64_t kept = *used - std::min(*used, cached);
  return GroupMemory{*limit, *limit - std::min(*limit, kept)};
}

std::optional<double> group_quota(const std::string& directory, CgroupPlaces::Version version) {
  if (version == CgroupPlaces::Version::kTwo) {
    const auto text = kernel_text(directory + "/cpu.max");
    return text ? parse_cpu_max(*text) : std::nullopt;
  }
  const auto quota = kernel_text(directory + "/cpu.cfs_quota_us");
  const auto period = kernel_text(directory + "/cpu.cfs_period_us");
  return quota && period ? parse_cpu_max(*quota + " " + *period) : std::nullopt;
}

// Lines of the kernel's statistics: "size    4    1073741824".
std::uint64_t zfs_cache_bytes() {
  const auto text = kernel_text("/proc/spl/kstat/zfs/arcstats");
  if (!text) return 0;
  std::istringstream lines(*text);
  std::uint64_t size_bytes = 0;
  std::uint64_t least_bytes = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string name;
    std::uint64_t type = 0;
    std::uint64_t value = 0;
    if (!(fields >> name >> type >> value)) continue;
    if (name == "size") size_bytes = value;
    if (name == "c_min") least_bytes = value;
  }
  return size_bytes - std::min(size_bytes, least_bytes);
}

}  // namespace

FreeMemory look_at_free_memory() {
  FreeMemory found;
  const auto limit = [&](std::uint64_t bytes, std::string_view by) {
    if (found.bytes && *found.bytes <= bytes) return;
    found.bytes = bytes;
    found.limit = by;
  };
  const MemoryFacts memory = look_at_memory("");
  if (memory.available_bytes > 0) {
    // MemAvailable knows neither swap nor the cache of ZFS, and both give way.
    const std::string meminfo = kernel_text("/proc/meminfo").value_or("");
    const std::uint64_t swap_bytes = parse_meminfo_bytes(meminfo, "SwapFree").value_or(0);
    limit(memory.available_bytes + swap_bytes + zfs_cache_bytes(), "the machine's free memory");
  }
  if (memory.group_limit_bytes) limit(memory.group_available_bytes, "the control group's memory limit");
  const std::string status = kernel_text("/proc/self/status").value_or("");
  const auto limit_by = [&](decltype(RLIMIT_AS) resource, std::string_view used, std::string_view by) {
    const auto most_bytes = limit_of(resource).soft;
    const auto used_bytes = parse_meminfo_bytes(status, used);
    if (most_bytes && used_bytes) limit(*most_bytes - std::min(*most_bytes, *used_bytes), by);
  };
  limit_by(RLIMIT_AS, "VmSize", "the limit RLIMIT_AS of this process");
  limit_by(RLIMIT_DATA, "VmData", "the limit RLIMIT_DATA of this process");
  return found;
}

std::optional<std::string> kernel_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text;
  // Most are short, and every load reads some: a buffer for the longest would be cleared each time.
  std::array<char, 4096> piece{};
  while (text.size() < kMostTextBytes && in.read(piece.data(), piece.size()).gcount() > 0)
    text.append(piece.data(), static_cast<std::size_t>(in.gcount()));
  if (!in.is_open() || in.bad()) return std::nullopt;
  return text;
}

MemoryFacts look_at_memory(const std::string& root) {
  const std::string meminfo = kernel_text(root + "/proc/meminfo").value_or("");
  MemoryFacts facts;
  facts.total_bytes = parse_meminfo_bytes(meminfo, "MemTotal").value_or(0);
  facts.available_bytes = parse_meminfo_bytes(meminfo, "MemAvailable").value_or(0);
  const CgroupPlaces places = places_of(root, "memory");
  for (const std::string& directory : places.directories) {
    const auto group = group_memory(root + directory, places.version);
    if (!group || group->limit_bytes >= facts.total_bytes) continue;
    if (facts.group_limit_bytes && facts.group_available_bytes <= group->available_bytes) continue;
    facts.group_limit_bytes = group->limit_bytes;
    facts.group_available_bytes = group->available_bytes;
  }
  return facts;
}

CpuFacts look_at_cpus(const std::string& root) {
  CpuFacts facts;
  facts.online = std::max(1U, std::thread::hardware_concurrency());
  const std::string status = kernel_text(root + "/proc/self/status").value_or("");
  facts.allowed = parse_allowed_cpus(status).value_or(facts.online);
  const CgroupPlaces places = places_of(root, "cpu");
  for (const std::string& directory : places.directories) {
    const auto quota = group_quota(root + directory, places.version);
    if (quota && (!facts.quota || *quota < *facts.quota)) facts.quota = quota;
  }
  return facts;
}

MachineFacts look_at_machine() {
  MachineFacts facts;
  facts.kernel = look_at_kernel();
  facts.uring = look_at_uring();
  facts.memlock_bytes = limit_of(RLIMIT_MEMLOCK);
  facts.open_files = limit_of(RLIMIT_NOFILE);
  facts.huge_pages = look_at_huge_pages();
  facts.memory = look_at_memory("");
  facts.cpus = look_at_cpus("");
  return facts;
}

}  // namespace lading::io
