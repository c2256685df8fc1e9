#include "exec/read_stage.h"

#include "exec/step_scaling.h"

namespace lading::exec {
namespace {

using device::Lane;

Result<void> account(const Load& load, const Lanes& lanes, const Step& step) {
  DestinationState& state = *load.states[step.destination];
  load.add_written(state, step.target_size_bytes);
  if (state.digest_at_end) return {};
  const unsigned element_bits = bits(state.dtype());
  const std::uint64_t begin = step.target_begin_bytes * 8 / element_bits;
  return load.digest(lanes, {step.destination, begin, begin + step.target_size_bytes * 8 / element_bits});
}

Result<void> fill_from(const Load& load, const Lanes& lanes, const io::File& file, const ReadTask& task) {
  Lane& lane = *lanes[task.device];
  if (task.mode == ReadTask::Mode::kInPlace) {
    const Step& step = task.steps.front();
    std::byte* const target = load.states[step.destination]->memory.data + step.target_begin_bytes;
    LADING_TRY(read_rows(load, file, task, target, task.rows > 1 ? step.loops.front().target_stride_bytes : 0));
  } else {
    LADING_ASSIGN_OR_RETURN(const std::span<std::byte> buffer, lane.acquire_staging_buffer());
    std::byte* const read = place_in(buffer, task);
    LADING_TRY(read_rows(load, file, task, read, task.row_bytes));
    for (const Step& step : task.steps) {
      const DestinationState& state = *load.states[step.destination];
      const StepScaling scaling(load, task, step);
      LADING_TRY(lane.move({read + step.source_begin_bytes, state.memory.data + step.target_begin_bytes, step.run_elems,
                            load.inputs.plan.sources[step.source].dtype, state.dtype(), step.loops, scaling.get()}));
    }
    LADING_TRY(lane.release_staging_buffer());
  }
  for (const Step& step : task.steps) LADING_TRY(account(load, lanes, step));
  return {};
}

}  // namespace

Batches begin_files(const Load& load) {
  Batches batches = tasks_of(load, ReadUse::kWrite,
                             [](const plan::RankPlan&, const plan::Read& read) { return !read.is_comparison(); });
  begin_tasks(load, batches);
  return batches;
}

FileSet read_files(const Load& load, const Batches& batches) {
  for (const std::vector<ReadTask>& tasks : batches) {
    for (const ReadTask& task : tasks) {
      for (const Step& step : task.steps) {
        if (!is_dense(step)) load.states[step.destination]->digest_at_end = true;
      }
    }
  }
  return run_tasks(load, batches, [&](const Lanes& lanes, const io::File& file, const ReadTask& task) {
    return fill_from(load, lanes, file, task);
  });
}

}  // namespace lading::exec
