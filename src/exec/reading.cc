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

Batches tasks_of(const Load& load, ReadUse use,
                 const std::function<bool(const plan::RankPlan&, const plan::Read&)>& wanted) {
  const plan::Plan& plan = load.inputs.plan;
  Batches batches(1);
  std::uint32_t first_destination = 0;
  ReadJob job;
  for (const plan::RankPlan& rank : plan.ranks) {
    std::size_t batch = 0;
    batches.resize(std::max(batches.size(), rank.batch_ends.size()));
    for (std::size_t r = 0; r < rank.reads.size(); ++r) {
      if (!rank.batch_ends.empty() && r == rank.batch_ends[batch]) ++batch;
      const plan::Read& read = rank.reads[r];
      if (!wanted(rank, read)) continue;
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
      split_read(plan, job, batches[batch]);
    }
    first_destination += static_cast<std::uint32_t>(rank.destinations.size());
  }
  // Ranks that share a file read it together, so that it need not be opened twice.
  for (std::vector<ReadTask>& tasks : batches) {
    std::stable_sort(tasks.begin(), tasks.end(), [](const ReadTask& a, const ReadTask& b) {
      return std::pair(a.file, a.begin_bytes) < std::pair(b.file, b.begin_bytes);
    });
  }
  return batches;
}

void begin_tasks(const Load& load, const Batches& batches) {
  load.scales.expect(load, batches);
  const std::vector<Scales::Entry*> first = load.scales.first_needed_by(0);
  load.crew.run(first.size(), [&](const Lanes&, std::size_t i) { return load.scales.read(load, *first[i]); });
}

FileSet run_tasks(const Load& load, const Batches& batches, const UseTask& use) {
  FileTable files([&](std::uint32_t file) { return load.inputs.open(plan::FileId(file)); },
                  load.inputs.plan.files.size());
  for (const std::vector<ReadTask>& tasks : batches) {
    for (const ReadTask& task : tasks) files.expect(task.file.number());
  }
  const auto run = [&](const Lanes& lanes, const ReadTask& task) -> Result<void> {
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
  };
  for (std::size_t b = 0; b < batches.size() && !load.crew.stopped(); ++b) {
    const std::vector<ReadTask>& tasks = batches[b];
    const std::vector<Scales::Entry*> next = load.scales.first_needed_by(b + 1);
    load.crew.run(next.size() + tasks.size(), [&](const Lanes& lanes, std::size_t i) {
      return i < next.size() ? load.scales.read(load, *next[i]) : run(lanes, tasks[i - next.size()]);
    });
    load.scales.forget(load, b);
  }
  FileSet doubtful = load.scales.take_doubtful();
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
