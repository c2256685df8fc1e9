#include "exec/save/write_task.h"

#include <algorithm>

namespace lading::exec {
namespace {

// Tasks begin at multiples of so many elements, so that packed ones are not cut inside a byte.
constexpr std::uint64_t kStepElems = 4096;

}  // namespace

void add_tasks(const plan::Write& write, DType file_dtype, WriteTask task, std::uint64_t task_bytes,
               std::vector<WriteTask>& tasks) {
  const std::uint64_t elems = write.elems();
  const std::uint64_t step = std::max<std::uint64_t>(1, task_bytes / bits(file_dtype) * 8 / kStepElems) * kStepElems;
  for (std::uint64_t begin = 0; begin < elems; begin += step) {
    task.begin_elem = begin;
    task.end_elem = std::min(elems, begin + step);
    tasks.push_back(task);
  }
}

}  // namespace lading::exec
