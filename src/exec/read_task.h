// ReadTask: a proved read of the plan, or a part of one, that a worker does on its own.
//
// A read that a staging buffer can hold is one task. A larger one is split: into rows, into rounds of a loop, or into
// parts of a run. A task never reads a byte that its read does not have. Where the bytes go to host memory unchanged
// they are read in place; everything else goes through a buffer.
#pragma once

#include <cstdint>
#include <vector>

#include "device/device.h"
#include "plan/plan.h"

namespace lading::exec {

/// Bytes that one destination takes from what a task has read.
struct Step {
  std::uint32_t destination = 0;  ///< into Load::states
  plan::SourceId source;
  std::uint64_t source_begin_bytes = 0;  ///< in what was read
  std::uint64_t target_begin_bytes = 0;
  std::uint64_t run_elems = 0;
  std::uint8_t first_code = 0;          ///< as Transfer::first_code
  std::vector<ByteLoop> loops;          ///< outermost first
  std::uint64_t target_size_bytes = 0;  ///< written in all
};

struct ReadTask {
  enum class Mode : std::uint8_t {
    kInPlace,  ///< one step, no cast, read straight into the destination
    kStaged,
  };
  Mode mode = Mode::kStaged;
  std::uint32_t device = 0;  ///< of all its destinations
  plan::FileId file;
  std::uint64_t begin_bytes = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t rows = 1;  ///< packed side by side in the buffer
  std::uint64_t row_stride_bytes = 0;
  std::vector<Step> steps;

  [[nodiscard]] std::uint64_t size_bytes() const { return row_bytes * rows; }
  /// How far apart two bytes are in the file that are `distance_bytes` apart in the buffer, from the start of a row.
  [[nodiscard]] std::uint64_t in_file(std::uint64_t distance_bytes) const {
    if (rows == 1) return distance_bytes;
    return distance_bytes / row_bytes * row_stride_bytes + distance_bytes % row_bytes;
  }
};

/// A transfer that a read serves.
struct Served {
  std::uint32_t destination = 0;
  const plan::Transfer* transfer = nullptr;
  DType storage = DType::kF32;
};

/// A read, and those of its transfers that are to be done: one at least.
struct ReadJob {
  const plan::Read* read = nullptr;
  std::vector<Served> served;
  std::uint32_t device = 0;
  std::uint64_t staging_buffer_bytes = 0;  ///< of that device: no task reads more
  bool may_be_in_place = false;            ///< the bytes may be read straight into the destination
};

/// Adds the tasks of a read.
void split_read(const plan::Plan& plan, const ReadJob& job, std::vector<ReadTask>& tasks);

/// Whether a step writes one stretch of its destination without gaps.
[[nodiscard]] bool is_dense(const Step& step);

}  // namespace lading::exec
