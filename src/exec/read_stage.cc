#include "exec/read_stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "device/cast.h"
#include "exec/file_table.h"
#include "io/read_exact.h"

namespace lading::exec {
namespace {

using device::Lane;

// Names the tensor whose bytes could not be had.
Error explain(const Load& load, Error error, const ReadTask& task) {
  if (error.file.empty()) error.file = load.inputs.plan.files[task.file].name;
  const Step* step = &task.steps.front();
  for (const Step& candidate : task.steps) {
    if (error.bytes && task.begin_bytes + candidate.source_begin_bytes <= error.bytes->begin) step = &candidate;
  }
  return load.works[step->target]->name(std::move(error));
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

Result<void> account(const Load& load, const Lanes& lanes, const Step& step) {
  Work& work = *load.works[step.target];
  load.add_written(work, step.target_size_bytes);
  if (work.digest_at_end) return {};
  const unsigned element_bits = bits(work.dtype());
  const std::uint64_t begin = step.target_begin_bytes * 8 / element_bits;
  return load.digest(lanes, {step.target, begin, begin + step.target_size_bytes * 8 / element_bits});
}

// Where in the slot a task's bytes go: as they stand in the file.
std::byte* place_in(std::span<std::byte> slot, const ReadTask& task) {
  return slot.data() + task.begin_bytes % device::kSlotAlignmentBytes;
}

Result<void> fill_from(const Load& load, const Lanes& lanes, const io::File& file, const ReadTask& task) {
  Lane& lane = *lanes[task.device];
  if (task.mode == ReadTask::Mode::kInPlace) {
    const Step& step = task.steps.front();
    std::byte* const target = load.works[step.target]->memory.data + step.target_begin_bytes;
    LADING_TRY(read_rows(load, file, task, target, task.rows > 1 ? step.loops.front().target_stride_bytes : 0));
  } else {
    LADING_ASSIGN_OR_RETURN(const std::span<std::byte> slot, lane.acquire_slot());
    std::byte* const read = place_in(slot, task);
    LADING_TRY(read_rows(load, file, task, read, task.row_bytes));
    for (const Step& step : task.steps) {
      const Work& work = *load.works[step.target];
      const DType from = load.inputs.plan.sources[step.source].dtype;
      LADING_TRY(lane.move({read + step.source_begin_bytes, work.memory.data + step.target_begin_bytes, step.run_elems,
                            from, work.dtype(), step.loops}));
    }
    LADING_TRY(lane.release_slot());
  }
  for (const Step& step : task.steps) LADING_TRY(account(load, lanes, step));
  return {};
}

// The first element of a run that is not what is in the target, after the cast.
struct Difference {
  std::uint64_t elem = 0;
  bool found = false;
};

Difference compare_run(const std::byte* source, const std::byte* target, std::uint64_t elems, device::Cast cast,
                       DType from, DType to) {
  constexpr std::uint64_t kAtOnce = 512;
  std::array<std::byte, kAtOnce * 8> made;
  for (std::uint64_t done = 0; done < elems; done += kAtOnce) {
    const std::uint64_t count = std::min(kAtOnce, elems - done);
    const std::byte* expected = source + bytes_of_elems(done, from);
    if (cast != nullptr) {
      cast(expected, made.data(), count);
      expected = made.data();
    }
    const std::byte* const found = target + bytes_of_elems(done, to);
    const std::uint64_t size_bytes = bytes_of_elems(count, to);
    if (std::memcmp(expected, found, size_bytes) == 0) continue;
    const auto byte =
        static_cast<std::uint64_t>(std::mismatch(expected, expected + size_bytes, found).first - expected);
    return {done + byte * 8 / bits(to), true};
  }
  return {};
}

Error tie_differs(const Work& work, std::string_view other, std::uint64_t buffer_elem) {
  std::uint64_t elem = buffer_elem;
  work.runs.for_each(buffer_elem, buffer_elem + 1, [&](const layout::OwnedRun& run) { elem = run.global_begin; });
  return work.name(Error(Code::kValuesDiffer, "two keys of one tie class hold different values")
                       .by_rule("R50")
                       .wanted(fmt::format("the values of {}", work.root->expression.text()))
                       .got(fmt::format("{} differs, first at element {}", other, elem))
                       .try_this("say ties \"untie\" if both are wanted, or drop the wrong key"));
}

// Bytes of a target as the host can see them: where they are, or fetched from a device.
class Sight {
 public:
  Sight(const Load& load, const Lanes& lanes, const Work& work)
      : lane_(*lanes[work.device]), work_(work), is_host_(load.devices[work.device].device->is_host()) {}

  Result<const std::byte*> of(std::uint64_t begin_bytes, std::uint64_t size_bytes) {
    if (is_host_) return work_.memory.data + begin_bytes;
    fetched_.resize(size_bytes);
    LADING_TRY(lane_.fetch(work_.memory.data + begin_bytes, fetched_));
    return fetched_.data();
  }

 private:
  Lane& lane_;
  const Work& work_;
  bool is_host_;
  std::vector<std::byte> fetched_;
};

// A key that is padded must have its padding where the other one has it.
Result<void> compare_constant(const Load& load, const Lanes& lanes, const Wanted& wanted) {
  const Work& work = *load.works[wanted.target];
  const plan::Transfer& constant = *wanted.transfer;
  Sight sight(load, lanes, work);
  const std::uint64_t expected = device::bits_of(constant.fill, work.dtype());
  const std::uint64_t width = std::max(1U, bits(work.dtype()) / 8);  // packed elements byte by byte: they are zero
  const std::uint64_t run_bytes = bytes_of_elems(constant.run_elems, work.dtype());
  Result<void> result;
  for_each_run(constant, [&](std::uint64_t begin_bytes) {
    const auto found = sight.of(begin_bytes, run_bytes);
    if (!found) result = fail(found.error());
    for (std::uint64_t at = 0; at < run_bytes && result; at += width) {
      if (std::memcmp(*found + at, &expected, width) == 0) continue;
      result = fail(tie_differs(work, "padding", (begin_bytes + at) * 8 / bits(work.dtype())));
    }
    return result.has_value();
  });
  return result;
}

Result<void> compare_step(const Load& load, const Lanes& lanes, const std::byte* read, const Step& step) {
  const Work& work = *load.works[step.target];
  Sight sight(load, lanes, work);
  const plan::Source& source = load.inputs.plan.sources[step.source];
  const device::Cast cast = source.dtype == work.dtype() ? nullptr : device::find_cast(source.dtype, work.dtype());
  std::vector<std::uint64_t> index(step.loops.size(), 0);
  for (;;) {
    std::uint64_t from = step.source_begin_bytes;
    std::uint64_t to = step.target_begin_bytes;
    for (std::size_t l = 0; l < index.size(); ++l) {
      from += index[l] * step.loops[l].source_stride_bytes;
      to += index[l] * step.loops[l].target_stride_bytes;
    }
    LADING_ASSIGN_OR_RETURN(const std::byte* const found, sight.of(to, bytes_of_elems(step.run_elems, work.dtype())));
    const Difference difference = compare_run(read + from, found, step.run_elems, cast, source.dtype, work.dtype());
    if (difference.found) {
      const std::uint64_t elem = to * 8 / bits(work.dtype()) + difference.elem;
      return fail(tie_differs(work, source.key, elem).in_file(load.inputs.plan.files[source.file].name));
    }
    std::size_t l = index.size();
    while (l > 0 && ++index[l - 1] == step.loops[l - 1].count) index[--l] = 0;
    if (l == 0) return {};
  }
}

Result<void> compare_from(const Load& load, const Lanes& lanes, const io::File& file, const ReadTask& task) {
  Lane& lane = *lanes[task.device];
  LADING_ASSIGN_OR_RETURN(const std::span<std::byte> slot, lane.acquire_slot());
  std::byte* const read = place_in(slot, task);
  LADING_TRY(read_rows(load, file, task, read, task.row_bytes));
  for (const Step& step : task.steps) LADING_TRY(compare_step(load, lanes, read, step));
  return lane.release_slot();
}

template <class Use>
void run_tasks(const Load& load, const std::vector<ReadTask>& tasks, Use&& use) {
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

ScheduleOptions schedule_options(const Load& load, const std::vector<Wanted>& wanted) {
  ScheduleOptions options;
  look_at_gaps(load, wanted, options);
  for (const LoadDevice& device : load.devices) options.slot_bytes.push_back(device.lane_options.slot_bytes);
  return options;
}

const plan::Destination& destination_of(const Load& load, std::uint32_t target) {
  return *load.works[target]->destination;
}

}  // namespace

void read_files(const Load& load) {
  std::vector<Wanted> wanted;
  for (std::uint32_t t = 0; t < load.targets.size(); ++t) {
    const std::uint32_t device = load.works[t]->device;
    const bool in_place = load.devices[device].device->is_host();
    for (const plan::Transfer& transfer : destination_of(load, t).transfers) {
      wanted.push_back({t, &transfer, device, in_place});
    }
  }
  const std::vector<ReadTask> tasks =
      schedule_reads(load.inputs.plan, load.targets, wanted, schedule_options(load, wanted));
  for (const ReadTask& task : tasks) {
    for (const Step& step : task.steps) {
      if (!is_dense(step)) load.works[step.target]->digest_at_end = true;
    }
  }
  run_tasks(load, tasks, [&](const Lanes& lanes, const io::File& file, const ReadTask& task) {
    return fill_from(load, lanes, file, task);
  });
}

void compare_ties(const Load& load) {
  std::vector<Wanted> wanted;
  std::vector<Wanted> constants;
  for (std::uint32_t t = 0; t < load.targets.size(); ++t) {
    for (const auto& comparison : destination_of(load, t).comparisons) {
      for (const plan::Transfer& transfer : comparison) {
        (transfer.is_fill() ? constants : wanted).push_back({t, &transfer, load.works[t]->device, false});
      }
    }
  }
  load.crew.run(constants.size(),
                [&](const Lanes& lanes, std::size_t i) { return compare_constant(load, lanes, constants[i]); });
  const std::vector<ReadTask> tasks =
      schedule_reads(load.inputs.plan, load.targets, wanted, schedule_options(load, wanted));
  run_tasks(load, tasks, [&](const Lanes& lanes, const io::File& file, const ReadTask& task) {
    return compare_from(load, lanes, file, task);
  });
}

}  // namespace lading::exec
