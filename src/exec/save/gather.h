// Walks a part of a write in the order of the file, as stretches that are contiguous there. Internal to exec/save.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/strided_loop.h"
#include "lading/dtype.h"
#include "lading/result.h"
#include "plan/save/save_plan.h"

namespace lading::exec {

/// Elements that are contiguous in the file: runs of memory, gathered by loops, outermost first. Targets of the loops
/// are offsets from the begin of the stretch.
struct Stretch {
  std::uint64_t file_begin_bytes = 0;
  std::uint64_t memory_begin_bytes = 0;
  std::uint64_t run_elems = 0;
  std::vector<ByteLoop> loops;  ///< empty: contiguous in memory too

  [[nodiscard]] std::uint64_t elems() const;
};

struct GatherInputs {
  const plan::Write& write;
  DType file_dtype = DType::kF32;
  DType memory_dtype = DType::kF32;
  std::uint64_t most_elems = 0;  ///< in a stretch that goes through a staging buffer
  /// What is contiguous in memory and not cast is written from where it lies.
  bool can_be_written_from_memory = true;
};

/// Elements [begin, end) of the write.
Result<void> for_each_stretch(const GatherInputs& inputs, std::uint64_t begin_elem, std::uint64_t end_elem,
                              const std::function<Result<void>(const Stretch&)>& act);

}  // namespace lading::exec
