#include "exec/reading.h"

#include <algorithm>
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
  return load.states[step->destination]->name(std::move(error));
}

}  // namespace

std::vector<ReadTask> tasks_of(const Load& load, ReadUse use, const std::function<bool(const plan::Read&)>& wanted) {
  const plan::Plan& plan = load.inputs.plan;
  std::vector<ReadTask> tasks;
  std::uint32_t first_destination = 0;
  ReadJob job;
  for (const plan::RankPlan& rank : plan.ranks) {
    for (const plan::Read& read : rank.reads) {
      if (!wanted(read)) continue;
      job.served.clear();
      for (const plan::TransferRef& ref : read.transfers) {
        const std::uint32_t destination = first_destination + ref.destination.number();
        const DestinationState& state = *load.states[destination];
        const plan::Transfer& transfer = rank.at(ref);
        if (state.memory.received || transfer.elems() == 0) continue;
        job.served.push_back({destination, &transfer, state.dtype()});
      }
      if (job.served.empty()) continue;
      job.read = &read;
      job.device = load.states[job.served[0].destination]->device;
      const LoadDevice& device = load.devices[job.device];
      job.staging_buffer_bytes = device.lane_options.staging_buffer_bytes;
      job.may_be_in_place = use == ReadUse::kWrite && device.device->is_host();
      split_read(plan, job, tasks);
    }
    first_destination += static_cast<std::uint32_t>(rank.destinations.size());
  }
  // Ranks that share a file read it together, so that it need not be opened twice.
  std::stable_sort(tasks.begin(), tasks.end(), [](const ReadTask& a, const ReadTask& b) {
    return std::pair(a.file, a.begin_bytes) < std::pair(b.file, b.begin_bytes);
  });
  return tasks;
}

FileSet run_tasks(const Load& load, const std::vector<ReadTask>& tasks, const UseTask& use) {
  FileTable files([&](std::uint32_t file) { return load.inputs.open(plan::FileId(file)); },
                  load.inputs.plan.files.size());
  for (const ReadTask& task : tasks) files.expect(task.file.number());
  load.crew.run(tasks.size(), [&](const Lanes& lanes, std::size_t i) -> Result<void> {
    const ReadTask& task = tasks[i];
    Result<void> used;
    if (auto file = files.acquire(task.file.number())) {
      used = use(lanes, **file, task);
    } else {
      used = fail(std::move(file).error());
    }
    Result<void> released = files.release(task.file.number());
    if (!used) return fail(explain(load, std::move(used).error(), task));
    if (!released) return fail(explain(load, std::move(released).error(), task));
    return {};
  });
  FileSet doubtful;
  for (const std::uint32_t file : files.take_doubtful()) doubtful.insert(plan::FileId(file));
  return doubtful;
}

std::byte* place_in(std::span<std::byte> buffer, const ReadTask& task) {
  return buffer.data() + task.begin_bytes % device::kStagingAlignmentBytes;
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
