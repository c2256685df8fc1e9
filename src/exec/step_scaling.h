// Where a step's elements stand in their quantized tensor: that says which scales they have.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/load.h"
#include "exec/read_task.h"

namespace lading::exec {

/// Of a step of a task. Borrows both.
class StepScaling {
 public:
  StepScaling(const Load& load, const ReadTask& task, const Step& step)
      : task_(task), source_(load.inputs.plan.sources[step.source]) {
    if (!source_.scaling) return;
    scaling_.scales = &load.scales.of(load.states[step.destination]->rank, step.source);
    scaling_.first_elem = elem_at(step.source_begin_bytes) + step.first_code;
    scaling_.first_code = step.first_code;
    for (const ByteLoop& loop : step.loops) {
      strides_elems_.push_back(task.in_file(loop.source_stride_bytes) * source_.codes_per_byte());
    }
    scaling_.strides_elems = strides_elems_;
  }
  StepScaling(const StepScaling&) = delete;
  StepScaling& operator=(const StepScaling&) = delete;

  /// Null for a source that is not quantized.
  [[nodiscard]] const device::Scaling* get() const { return source_.scaling ? &scaling_ : nullptr; }
  /// The tensor's element that stands in the buffer at this byte; of several codes in a byte the first one.
  [[nodiscard]] std::uint64_t elem_at(std::uint64_t buffer_bytes) const {
    return (task_.begin_bytes + task_.in_file(buffer_bytes) - source_.bytes.begin) * source_.codes_per_byte();
  }

 private:
  const ReadTask& task_;
  const plan::Source& source_;
  std::vector<std::uint64_t> strides_elems_;
  device::Scaling scaling_;
};

}  // namespace lading::exec
