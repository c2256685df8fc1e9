#include "doctor/findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "base/text.h"
#include "exec/thread_count.h"
#include "io/choose.h"

namespace lading {

std::string_view word(FindingLevel level) {
  switch (level) {
    case FindingLevel::kGood: return "good";
    case FindingLevel::kSlower: return "slower";
    case FindingLevel::kMissing: return "missing";
    case FindingLevel::kUnknown: return "unknown";
  }
  return "unknown";
}

}  // namespace lading

namespace lading::doctor {
namespace {

using enum FindingLevel;
using exec::kMostThreads;

// Staging beyond the model itself, and as much again for everything else.
constexpr std::uint64_t kLeastFreeBytes = std::uint64_t{512} << 20;
// Each of 16 readers may have a file, its twin for O_DIRECT and a ring; the rest is the driver's and the program's.
constexpr std::uint64_t kLeastOpenFiles = 256;
// Rings of 16 readers, with room to spare. Kernels before 5.12 take them off the limit on locked memory.
constexpr std::uint64_t kLeastLockedBytes = std::uint64_t{1} << 20;
constexpr io::KernelVersion kRingsAreFree{5, 12};

constexpr const char* kBufferedCost = "cold files through the page cache: 1.9 instead of 3.5 GB/s";

std::string per_cent(double share) { return fmt::format("{:.0f} %", std::floor(100 * share)); }

std::string shown(const io::Limit& limit, std::string (*text)(std::uint64_t)) {
  if (!limit.soft) return "unlimited";
  if (limit.hard == limit.soft) return text(*limit.soft);
  return fmt::format("{} (may be raised to {})", text(*limit.soft), limit.hard ? text(*limit.hard) : "any number");
}

void add_gpus(const Facts& facts, std::vector<Finding>& findings) {
  const device::GpuSurvey& survey = facts.gpus;
  if (!survey.driver.empty()) findings.push_back({"driver", kGood, fmt::format("CUDA {}", survey.driver), "", ""});
  if (survey.gpus.empty()) {
    const std::string why = survey.why_none.empty() ? "none" : fmt::format("none: {}", survey.why_none);
    findings.push_back({"gpu", kMissing, why, "loads fill host memory only", ""});
  }
  for (const device::GpuInfo& gpu : survey.gpus) {
    Finding finding;
    finding.id = fmt::format("gpu:{}", gpu.index);
    finding.level = gpu.has_machine_code ? kGood : kSlower;
    finding.found = fmt::format("{}, compute capability {}.{}, {} of {} free", gpu.name, gpu.sm / 10, gpu.sm % 10,
                                human_bytes(gpu.free_bytes), human_bytes(gpu.total_bytes));
    if (!gpu.has_machine_code) {
      finding.cost = "this build has no machine code for it: the driver compiles the kernels at their first use";
      finding.remedy =
          "Let the driver keep the compiled kernels in its cache (CUDA_CACHE_PATH): it then compiles them once.";
    }
    findings.push_back(std::move(finding));
  }
}

std::string uring_remedy(const io::UringFacts& uring) {
  switch (uring.error) {
    case EPERM:
    case EACCES:
      if (uring.disabled.value_or(0) == 1)
        return "Run as root: sysctl kernel.io_uring_disabled=0. Or add the user to the group kernel.io_uring_group.";
      if (uring.disabled.value_or(0) != 0) return "Run as root: sysctl kernel.io_uring_disabled=0.";
      return "Allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile of the sandbox.";
    case ENOSYS: return "Use Linux 5.6 or newer. If this kernel is, a sandbox (seccomp, gVisor) hides io_uring.";
    case ENOMEM: return "Raise the limit on locked memory (ulimit -l): kernels before 5.12 count rings against it.";
    case EMFILE:
    case ENFILE: return "Raise the limit on open files (ulimit -n).";
    default: return "";
  }
}

Finding find_uring(const io::UringFacts& uring) {
  if (uring.is_in_build && uring.error == 0) return {"io_uring", kGood, "works", "", ""};
  const std::string cost = "cold files one request per thread: 2.3 instead of 3.5 GB/s";
  if (!uring.is_in_build) {
    return {"io_uring", kSlower, "not in this build", cost,
            "Build lading with liburing (liburing-dev, -DLADING_WITH_URING=ON)."};
  }
  return {"io_uring", kSlower, fmt::format("refused: {}", io::errno_text(uring.error)), cost, uring_remedy(uring)};
}

bool is_direct_used_on(io::FileSystem file_system) {
  return io::judge({file_system, std::uint64_t{1} << 40, io::Residency{0, 1}}) == io::FileVerdict::kDirect;
}

Finding find_direct(const io::PlaceFacts& place) {
  Finding finding{"o_direct", kGood, "", "", ""};
  switch (place.direct_tried_on) {
    case io::TriedOn::kNothing:
      return {"o_direct", kUnknown, "could not be tried: no file can be read or created there", "",
              "Pass a checkpoint, or a directory that you can write to."};
    case io::TriedOn::kFile: finding.found = "on the file"; break;
    case io::TriedOn::kTemporary: finding.found = "on a temporary file"; break;
    case io::TriedOn::kBeneath: finding.found = "on a file in the directory"; break;
  }
  finding.found = place.direct_error == 0
                      ? fmt::format("works, tried {}", finding.found)
                      : fmt::format("refused {}: {}", finding.found, io::errno_text(place.direct_error));
  if (!is_direct_used_on(place.file_system)) {
    finding.cost = "nothing: it is not used on this file system";
  } else if (place.direct_error != 0) {
    finding.level = kSlower;
    finding.cost = kBufferedCost;
    finding.remedy = "Put the checkpoint on a file system that supports it, such as ext4 or xfs on a local disk.";
  }
  return finding;
}

Finding find_file_system(const io::PlaceFacts& place) {
  const std::string name = place.mount_type.empty() ? std::string(io::word(place.file_system)) : place.mount_type;
  Finding finding{"file_system", kSlower, name, kBufferedCost, "Put the checkpoint on ext4 or xfs on a local disk."};
  switch (place.file_system) {
    case io::FileSystem::kExt:
    case io::FileSystem::kXfs: return {"file_system", kGood, name, "", ""};
    case io::FileSystem::kMemory:
      return {"file_system", kGood, name + ", which is memory", "host memory: files there take memory from the model",
              ""};
    case io::FileSystem::kOverlay:
      finding.found += ", the layers of a container";
      finding.remedy = "Mount the checkpoint's directory into the container (a volume, a bind mount).";
      break;
    case io::FileSystem::kNetwork:
      finding.found += ", over a network";
      finding.cost = "the network's and the server's speed; not measured";
      finding.remedy = "Copy the checkpoint to a local disk first if you load it more than once.";
      break;
    case io::FileSystem::kFuse:
      finding.found += ", served by a process (FUSE)";
      finding.cost = "that process's speed; not measured";
      finding.remedy = "Copy the checkpoint to a local disk first if you load it more than once.";
      break;
    case io::FileSystem::kBtrfs:
    case io::FileSystem::kF2fs:
    case io::FileSystem::kZfs: break;
    case io::FileSystem::kOther:
      finding.level = kUnknown;
      finding.cost = fmt::format("this file system is unknown to lading; {}", kBufferedCost);
      break;
  }
  return finding;
}

bool fits_into_memory(const Facts& facts);

Finding find_page_cache(const Facts& facts) {
  const std::string remedy = fits_into_memory(facts)
                                 ? "Load with --io pread to keep the files in memory for the next load."
                                 : "Use a machine with more free memory to keep the files in the page cache.";
  if (facts.checkpoint_is_refused)
    return {"page_cache", kUnknown, "no checkpoint that lading accepts", "", "Run lading inspect to see why."};
  const CheckpointFacts& checkpoint = *facts.checkpoint;
  const std::string size = human_bytes(checkpoint.size_bytes);
  if (facts.place.file_system == io::FileSystem::kMemory)
    return {"page_cache", kGood, fmt::format("{}, all in memory", size), "", ""};
  if (facts.place.file_system == io::FileSystem::kOverlay)
    return {"page_cache", kUnknown, fmt::format("{}; overlay does not say what is cached", size), "", ""};
  if (!checkpoint.residency)
    return {"page_cache", kUnknown, fmt::format("{}; the kernel does not say what is cached", size), "", ""};
  const double share = checkpoint.residency->share();
  const std::string found = fmt::format("{}, {} of it cached", size, per_cent(share));
  if (share >= io::kResidentShare) return {"page_cache", kGood, found, "", ""};
  return {"page_cache", kSlower, found, "the rest comes from the disk: 3.5 instead of 19.8 GB/s", remedy};
}

std::uint64_t free_bytes(const io::MemoryFacts& memory) {
  if (!memory.group_limit_bytes) return memory.available_bytes;
  return std::min(memory.available_bytes, memory.group_available_bytes);
}

bool fits_into_memory(const Facts& facts) {
  return facts.checkpoint && facts.checkpoint->size_bytes < free_bytes(facts.machine.memory);
}

Finding find_memory(const Facts& facts) {
  const io::MemoryFacts& memory = facts.machine.memory;
  if (memory.total_bytes == 0) return {"memory", kUnknown, "/proc/meminfo cannot be read", "", ""};
  Finding finding{"memory", kGood, "", "", ""};
  finding.found = fmt::format("{} of {} free", human_bytes(memory.available_bytes), human_bytes(memory.total_bytes));
  if (memory.group_limit_bytes) {
    finding.found += fmt::format("; the control group leaves {} of {}", human_bytes(memory.group_available_bytes),
                                 human_bytes(*memory.group_limit_bytes));
  }
  const char* const more = memory.group_limit_bytes && memory.group_available_bytes < memory.available_bytes
                               ? "Give the control group (the container, the job) more memory."
                               : "Stop other programs, or use a machine with more memory.";
  if (free_bytes(memory) < kLeastFreeBytes) {
    finding.level = kMissing;
    finding.cost = "a load needs up to 268 MB beyond the model itself";
    finding.remedy = more;
  } else if (facts.checkpoint && !fits_into_memory(facts)) {
    const bool is_for_pages_only = !facts.gpus.gpus.empty();
    finding.level = is_for_pages_only ? kSlower : kMissing;
    finding.cost = fmt::format("the checkpoint ({}) does not fit{}; nor does it stay cached: 3.5 instead of 19.8 GB/s",
                               human_bytes(facts.checkpoint->size_bytes),
                               is_for_pages_only ? " into host memory" : ", unless ranks share it");
    finding.remedy = more;
  }
  return finding;
}

Finding find_huge_pages(io::HugePages huge_pages) {
  const std::string cost =
      "writing to fresh host memory: 0.7–2.9 instead of 5–9 GB/s; pinning 256 MiB: 0.18 instead of 0.04 s";
  switch (huge_pages) {
    case io::HugePages::kAlways: return {"huge_pages", kGood, "always", "", ""};
    case io::HugePages::kMadvise: return {"huge_pages", kGood, "on request (madvise), as lading does", "", ""};
    case io::HugePages::kNever:
      return {"huge_pages", kSlower, "never", cost,
              "Run as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled."};
    case io::HugePages::kAbsent:
      return {"huge_pages", kSlower, "this kernel has none", cost,
              "Use a kernel with CONFIG_TRANSPARENT_HUGEPAGE; a sandbox may also hide /sys."};
    case io::HugePages::kUnknown: break;
  }
  return {"huge_pages", kUnknown, "the kernel's answer is not understood", "", ""};
}

Finding find_memlock(const io::MachineFacts& machine) {
  Finding finding{"memlock", kGood, shown(machine.memlock_bytes, &human_bytes), "", ""};
  if (machine.memlock_bytes.soft.value_or(kLeastLockedBytes) >= kLeastLockedBytes) return finding;
  if (!(machine.kernel < kRingsAreFree)) {
    finding.cost = "nothing: this kernel does not count io_uring rings against it";
    return finding;
  }
  finding.level = kSlower;
  finding.cost = "this kernel counts io_uring rings against it; without rings, cold files at 2.3 instead of 3.5 GB/s";
  finding.remedy = "Run ulimit -l 1024, or set memlock in limits.conf.";
  return finding;
}

Finding find_cpus(const Facts& facts) {
  const io::CpuFacts& cpus = facts.machine.cpus;
  Finding finding{"cpus", kGood, with_commas(cpus.allowed), "", ""};
  if (cpus.allowed < cpus.online) finding.found = fmt::format("{} of {}", cpus.allowed, cpus.online);
  double usable = cpus.allowed;
  if (cpus.quota && *cpus.quota < usable) {
    usable = *cpus.quota;
    finding.found += fmt::format("; the control group grants the time of {:.1f}", usable);
  }
  if (usable >= kMostThreads) return finding;
  finding.level = kSlower;
  finding.cost = facts.gpus.gpus.empty()
                     ? "cached files: 2.8 GB/s with 1 thread, 7.3 with 4, 13.1 with 8, 19.8 with 16"
                     : "cached files to a GPU: 8 GB/s with 1 thread, 27 with 4, 46 with 8, 51 with 16";
  if (usable < std::min(cpus.online, kMostThreads)) {
    finding.remedy = "Give the process more CPUs: a load uses as many threads as it has CPUs.";
  }
  return finding;
}

Finding find_open_files(const io::Limit& limit) {
  Finding finding{"open_files", kGood, shown(limit, &with_commas), "", ""};
  if (limit.soft.value_or(kLeastOpenFiles) >= kLeastOpenFiles) return finding;
  finding.level = kSlower;
  finding.cost =
      "with few left, loads work without io_uring and O_DIRECT: 1.9 instead of 3.5 GB/s; with none, they fail";
  finding.remedy = fmt::format("Run ulimit -n {}.", kLeastOpenFiles);
  return finding;
}

}  // namespace

std::vector<Finding> diagnose(const Facts& facts) {
  std::vector<Finding> findings;
  add_gpus(facts, findings);
  findings.push_back(find_file_system(facts.place));
  if (facts.checkpoint || facts.checkpoint_is_refused) findings.push_back(find_page_cache(facts));
  findings.push_back(find_direct(facts.place));
  findings.push_back(find_uring(facts.machine.uring));
  findings.push_back(find_memory(facts));
  findings.push_back(find_huge_pages(facts.machine.huge_pages));
  findings.push_back(find_cpus(facts));
  findings.push_back(find_memlock(facts.machine));
  findings.push_back(find_open_files(facts.machine.open_files));
  return findings;
}

}  // namespace lading::doctor
