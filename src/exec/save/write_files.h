// Carries out a save plan on the ranks of this process: bytes of memory to their places in files that are there
// already.
//
// One call writes what the plan gives these ranks, and syncs it. Memory is only read. What is contiguous on both sides
// and needs no cast is written from where it lies; everything else is gathered in a staging buffer, in the order of the
// file. Digests are taken of the bytes that are handed to the system, in memory, never of what a file holds.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "device/digest.h"
#include "exec/executor.h"
#include "io/file.h"
#include "lading/result.h"
#include "plan/save/save_plan.h"

namespace lading::exec {

enum class Sync : std::uint8_t { kNo, kYes };

/// Where the memory of destinations lies.
enum class MemoryPlace : std::uint8_t {
  kAsPlanned,  ///< on the destination's device
  kHost,       ///< a copy in host memory, whatever the destination's device
};

/// A file of the plan, opened for writing.
struct OutputFile {
  io::Fd fd;
  std::string path;  ///< for messages
};

struct SaveOptions {
  std::uint32_t threads = 0;                      ///< 0: as many as help
  std::uint64_t staging_buffer_bytes = 4U << 20;  ///< of each thread
  Sync sync = Sync::kYes;
  MemoryPlace memory = MemoryPlace::kAsPlanned;
  const std::atomic<bool>* cancelled = nullptr;   ///< looked at between tasks
  std::function<void(const Progress&)> progress;  ///< called by the calling thread, a few times a second
};

struct SaveInputs {
  const plan::SavePlan& plan;                          ///< checked
  std::vector<std::uint32_t> ranks;                    ///< into SavePlan::ranks: those of this process
  std::vector<std::vector<DestinationMemory>> memory;  ///< by `ranks` and the destinations of the load
  std::function<Result<OutputFile>(plan::FileId)> open;
};

/// What these ranks have written of one key.
struct WrittenKey {
  plan::SourceId source = 0;
  std::uint64_t bytes = 0;
  device::Digest digest;  ///< of the bytes as the file has them, at their places in the key
};

struct SaveOutcome {
  std::vector<WrittenKey> keys;  ///< by source; those that these ranks write nothing of are not here
  std::uint64_t written_bytes = 0;
  std::uint64_t staging_bytes = 0;
  std::uint32_t threads = 0;
  double writing_seconds = 0;
  double sync_seconds = 0;
  Errors errors;  ///< empty: everything is written, and synced
};

/// Does not throw.
[[nodiscard]] SaveOutcome write_files(const SaveInputs& inputs, const SaveOptions& options);

}  // namespace lading::exec
