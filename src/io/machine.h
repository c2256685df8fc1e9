// What this machine offers for reading files and holding them: the facts, without a judgement (api/doctor_findings.h).
//
// Looking leaves nothing behind and fails nothing: what cannot be found out is nothing. Thread-safe.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "io/file.h"
#include "io/machine_text.h"
#include "io/residency.h"
#include "lading/result.h"

namespace lading::io {

struct UringFacts {
  bool is_in_build = false;
  int error = 0;                          ///< of setting up a ring; 0: it works
  std::optional<std::uint64_t> disabled;  ///< kernel.io_uring_disabled; nothing: a kernel without it (before 6.6)
};

/// Of setrlimit; nothing: unlimited.
struct Limit {
  std::optional<std::uint64_t> soft;
  std::optional<std::uint64_t> hard;
};

struct MemoryFacts {
  std::uint64_t total_bytes = 0;      ///< 0: unknown
  std::uint64_t available_bytes = 0;  ///< the kernel's guess: free, and what it would give up
  /// Of the control group that leaves least, and what it leaves; nothing: no limit below the machine's memory.
  std::optional<std::uint64_t> group_limit_bytes;
  std::uint64_t group_available_bytes = 0;
};

struct CpuFacts {
  unsigned online = 0;
  unsigned allowed = 0;         ///< to this process (sched_setaffinity, cpusets)
  std::optional<double> quota;  ///< processors' worth of time that the control group grants; nothing: all

  /// How many threads can run at the same time; at least 1.
  [[nodiscard]] unsigned usable() const {
    const double granted = quota ? std::ceil(*quota) : allowed;
    return std::max(1U, static_cast<unsigned>(std::min<double>(allowed, granted)));
  }
};

struct MachineFacts {
  KernelVersion kernel;
  UringFacts uring;
  Limit memlock_bytes;
  Limit open_files;
  HugePages huge_pages = HugePages::kUnknown;
  MemoryFacts memory;
  CpuFacts cpus;
};

[[nodiscard]] MachineFacts look_at_machine();

/// The text of a file in /proc or /sys; nothing if it is not there or not to be read.
[[nodiscard]] std::optional<std::string> kernel_text(const std::string& path);

/// How much more memory this process can have, and what sets the limit.
struct FreeMemory {
  std::optional<std::uint64_t> bytes;  ///< nothing: it cannot be found out
  std::string limit;                   ///< "the machine's free memory", "RLIMIT_DATA of this process", …
};
[[nodiscard]] FreeMemory look_at_free_memory();

/// For tests: where /proc and /sys are taken from; control groups are sought at the places that mountinfo names,
/// beneath it.
[[nodiscard]] MemoryFacts look_at_memory(const std::string& root);
[[nodiscard]] CpuFacts look_at_cpus(const std::string& root);

enum class TriedOn : std::uint8_t {
  kNothing,    ///< no file to try it on, and none could be made
  kFile,       ///< the file that was given
  kTemporary,  ///< a file of our own in the directory, without a name
  kBeneath,    ///< a file found in the directory
};

struct PlaceFacts {
  FileSystem file_system = FileSystem::kOther;
  std::string mount_type;  ///< "ext4", as the kernel calls it; empty: unknown
  TriedOn direct_tried_on = TriedOn::kNothing;
  int direct_error = 0;  ///< of a read with O_DIRECT; 0: it works, if it was tried
};

/// A directory or a file. Fails if there is none.
[[nodiscard]] Result<PlaceFacts> look_at_place(const std::string& path);
[[nodiscard]] PlaceFacts look_at_file(const File& file);

}  // namespace lading::io
