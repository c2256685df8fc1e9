// Schedule: rank plans cut into tasks that a worker can do on its own. Pure.
//
// A task reads one stretch of a file, or rows of one, and says what becomes of the bytes. Where a stretch goes to host
// memory unchanged it is read in place; everything else goes through a staging slot. Stretches that are small and near
// each other share one read, and so do those that overlap, as on ranks that hold replicas.
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "plan/plan.h"

namespace lading::exec {

/// One memory to be filled: a destination of a rank.
struct Target {
  std::uint32_t rank = 0;         ///< into Plan::ranks
  std::uint32_t destination = 0;  ///< into RankPlan::destinations
};

/// Bytes that one target takes from what a task has read.
struct Step {
  std::uint32_t target = 0;              ///< into Schedule::targets
  std::uint32_t source = 0;              ///< into Plan::sources
  std::uint64_t source_begin_bytes = 0;  ///< in what was read
  std::uint64_t target_begin_bytes = 0;
  std::uint64_t run_elems = 0;
  std::vector<device::Loop> loops;      ///< outermost first
  std::uint64_t target_size_bytes = 0;  ///< written in all
};

struct ReadTask {
  enum class Mode : std::uint8_t {
    kInPlace,  ///< one step, no cast, read straight into the target
    kStaged,
  };
  Mode mode = Mode::kStaged;
  std::uint32_t device = 0;  ///< of all its targets
  std::uint32_t file = 0;    ///< into Plan::files
  std::uint64_t begin_bytes = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t rows = 1;  ///< packed side by side in the slot
  std::uint64_t row_stride_bytes = 0;
  std::vector<Step> steps;

  [[nodiscard]] std::uint64_t size_bytes() const { return row_bytes * rows; }
};

/// As the planner counts; and what it is for a file in memory, where a read costs little more than its bytes.
inline constexpr std::uint64_t kGapBytes = 16 << 10;
inline constexpr std::uint64_t kGapInMemoryBytes = 2 << 10;

struct ScheduleOptions {
  std::vector<std::uint64_t> slot_bytes;  ///< by device: no task reads more
  /// By file: gaps up to this are read along, if that saves a read. Files that are not listed: kGapBytes.
  std::vector<std::uint64_t> gap_bytes;

  [[nodiscard]] std::uint64_t gap_of(std::uint32_t file) const {
    return file < gap_bytes.size() ? gap_bytes[file] : kGapBytes;
  }
};

/// All destinations of all ranks, in order.
[[nodiscard]] std::vector<Target> targets_of(const plan::Plan& plan);

/// A transfer that reads a file.
struct Wanted {
  std::uint32_t target = 0;
  const plan::Transfer* transfer = nullptr;
  std::uint32_t device = 0;
  bool in_place = false;  ///< the bytes may be read straight into the target
};

/// The transfers as tasks in file order.
[[nodiscard]] std::vector<ReadTask> schedule_reads(const plan::Plan& plan, const std::vector<Target>& targets,
                                                   const std::vector<Wanted>& wanted, const ScheduleOptions& options);

/// Whether a step writes one stretch of its target without gaps.
[[nodiscard]] bool is_dense(const Step& step);

}  // namespace lading::exec
