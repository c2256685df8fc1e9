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
  std::uint64_t most_bytes = 0;  ///< of the file, in a stretch that has loops or is cast
};

/// Elements [begin, end) of the write.
Result<void> for_each_stretch(const GatherInputs& inputs, std::uint64_t begin_elem, std::uint64_t end_elem,
                              const std::function<Result<void>(const Stretch&)>& act);

}  // namespace lading::exec
