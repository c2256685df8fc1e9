#include "exec/read_tasks.h"

#include <utility>

#include "exec/file_table.h"
#include "io/read_exact.h"

namespace lading::exec {
namespace {

// Names the tensor whose bytes could not be had.
Error explain(const Load& load, Error error, const ReadTask& task) {
  if (error.file.empty()) error.file = load.inputs.plan.files[task.file].name;
  if (error.tensor) return error;
  const Step* step = &task.steps.front();
  for (const Step& candidate : task.steps) {
    if (error.bytes && task.begin_bytes + candidate.source_begin_bytes <= error.bytes->begin) step = &candidate;
  }
  return load.works[step->target]->name(std::move(error));
}

// Rows with gaps: whether to read the gaps along depends on where the file is. A file that cannot be opened is told of
// when it is read.
void look_at_gaps(const Load& load, const std::vector<Wanted>& wanted, ScheduleOptions& options) {
  const plan::Plan& plan = load.inputs.plan;
  std::vector<bool> has_gaps(plan.files.size(), false);
  for (const Wanted& want : wanted) {
    if (!want.transfer->is_fill() && !want.transfer->loops.empty()) {
      has_gaps[plan.sources[want.transfer->source].file] = true;
    }
  }
  options.gap_bytes.assign(plan.files.size(), kGapBytes);
  for (std::uint32_t f = 0; f < has_gaps.size(); ++f) {
    if (!has_gaps[f]) continue;
    const auto file = load.inputs.open(f);
    if (file && io::Chooser::is_in_memory(*file)) options.gap_bytes[f] = kGapInMemoryBytes;
  }
}

}  // namespace

std::vector<ReadTask> tasks_of(const Load& load, const std::vector<Wanted>& wanted) {
  ScheduleOptions options;
  look_at_gaps(load, wanted, options);
  for (const LoadDevice& device : load.devices) options.slot_bytes.push_back(device.lane_options.slot_bytes);
  return schedule_reads(load.inputs.plan, load.targets, wanted, options);
}

FileSet run_tasks(const Load& load, const std::vector<ReadTask>& tasks, const UseTask& use) {
  FileTable files(load.inputs.open, load.inputs.plan.files.size(), tasks);
  load.crew.run(tasks.size(), [&](const Lanes& lanes, std::size_t i) -> Result<void> {
    const ReadTask& task = tasks[i];
    Result<void> used;
    if (auto file = files.acquire(task.file)) {
      used = use(lanes, **file, task);
    } else {
      used = fail(std::move(file).error());
    }
    Result<void> released = files.release(task.file);
    if (!used) return fail(explain(load, std::move(used).error(), task));
    if (!released) return fail(explain(load, std::move(released).error(), task));
    return {};
  });
  return files.take_doubtful();
}

std::byte* place_in(std::span<std::byte> slot, const ReadTask& task) {
  return slot.data() + task.begin_bytes % device::kSlotAlignmentBytes;
}

Result<void> read_rows(const Load& load, const io::File& file, const ReadTask& task, std::byte* out,
                       std::uint64_t stride_bytes) {
  const std::uint64_t end = task.begin_bytes + (task.rows - 1) * task.row_stride_bytes + task.row_bytes;
  io::ReadBackend& backend =
      load.options.backend != nullptr ? *load.options.backend : load.chooser.pick(file, {task.begin_bytes, end});
  for (std::uint64_t row = 0; row < task.rows; ++row) {
    const std::uint64_t begin = task.begin_bytes + row * task.row_stride_bytes;
    auto* const chars = reinterpret_cast<char*>(out + row * stride_bytes);
    LADING_TRY(io::read_exact(file, backend, begin, {chars, task.row_bytes}));
  }
  load.crew.add_read(task.size_bytes());
  return {};
}

}  // namespace lading::exec
