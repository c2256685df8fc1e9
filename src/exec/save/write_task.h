// A save's work, cut into pieces for threads. Internal to exec/save.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/save/save_plan.h"

namespace lading::exec {

/// Elements [begin, end) of a write, counted in the order of the file.
struct WriteTask {
  std::uint32_t rank = 0;  ///< into SaveInputs::ranks
  std::uint32_t write = 0;
  std::uint64_t begin_elem = 0;
  std::uint64_t end_elem = 0;
};

/// The tasks of a write, each of about `task_bytes` of the file.
void add_tasks(const plan::Write& write, DType file_dtype, WriteTask task, std::uint64_t task_bytes,
               std::vector<WriteTask>& tasks);

}  // namespace lading::exec
