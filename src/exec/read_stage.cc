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

// Bytes of a target as the host can see them: where they are, or fetched from a device, a window at a time.
class Sight {
 public:
  static constexpr std::uint64_t kWindowBytes = std::uint64_t{256} << 10;

  Sight(const Load& load, const Lanes& lanes, const Work& work)
      : load_(load), lane_(*lanes[work.device]), work_(work), is_host_(load.devices[work.device].device->is_host()) {}

  /// Of at most kWindowBytes. Cheap where they follow what was asked for before.
  Result<const std::byte*> of(std::uint64_t begin_bytes, std::uint64_t size_bytes) {
    if (is_host_) return work_.memory.data + begin_bytes;
    if (begin_bytes < begin_bytes_ || begin_bytes + size_bytes > begin_bytes_ + window_.size()) {
      if (load_.crew.stopped()) return fail(Error(Code::kCancelled, "the comparison of ties was cut short"));
      begin_bytes_ = begin_bytes;
      window_.resize(std::min(kWindowBytes, work_.destination->buffer_bytes - begin_bytes));
      LADING_TRY(lane_.fetch(work_.memory.data + begin_bytes, window_));
    }
    return window_.data() + (begin_bytes - begin_bytes_);
  }

 private:
  const Load& load_;
  Lane& lane_;
  const Work& work_;
  bool is_host_;
  std::uint64_t begin_bytes_ = 0;
  std::vector<std::byte> window_;
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
    for (std::uint64_t at = 0; at < run_bytes && result; at += width) {
      const auto found = sight.of(begin_bytes + at, width);
      if (!found) {
        result = fail(found.error());
      } else if (std::memcmp(*found, &expected, width) != 0) {
        result = fail(tie_differs(work, "padding", (begin_bytes + at) * 8 / bits(work.dtype())));
      }
    }
    return result.has_value();
  });
  return result;
}

// A run is compared in pieces that fit in a window.
Result<void> compare_run_of(const Load& load, Sight& sight, const Work& work, const Step& step, const std::byte* read,
                            std::uint64_t to) {
  const plan::Source& source = load.inputs.plan.sources[step.source];
  const device::Cast cast = source.dtype == work.dtype() ? nullptr : device::find_cast(source.dtype, work.dtype());
  constexpr std::uint64_t kAtOnce = Sight::kWindowBytes / 8;
  for (std::uint64_t done = 0; done < step.run_elems; done += kAtOnce) {
    const std::uint64_t elems = std::min(kAtOnce, step.run_elems - done);
    const std::uint64_t begin_bytes = to + bytes_of_elems(done, work.dtype());
    LADING_ASSIGN_OR_RETURN(const std::byte* const found, sight.of(begin_bytes, bytes_of_elems(elems, work.dtype())));
    const Difference difference =
        compare_run(read + bytes_of_elems(done, source.dtype), found, elems, cast, source.dtype, work.dtype());
    if (!difference.found) continue;
    const std::uint64_t elem = begin_bytes * 8 / bits(work.dtype()) + difference.elem;
    return fail(tie_differs(work, source.key, elem).in_file(load.inputs.plan.files[source.file].name));
  }
  return {};
}

Result<void> compare_step(const Load& load, const Lanes& lanes, const std::byte* read, const Step& step) {
  const Work& work = *load.works[step.target];
  Sight sight(load, lanes, work);
  // In the target's order, which may be in another device's memory; what was read is at hand in any order.
  std::vector<device::Loop> loops = step.loops;
  std::sort(loops.begin(), loops.end(),
            [](const device::Loop& a, const device::Loop& b) { return a.target_stride_bytes > b.target_stride_bytes; });
  std::vector<std::uint64_t> index(loops.size(), 0);
  for (;;) {
    std::uint64_t from = step.source_begin_bytes;
    std::uint64_t to = step.target_begin_bytes;
    for (std::size_t l = 0; l < index.size(); ++l) {
      from += index[l] * loops[l].source_stride_bytes;
      to += index[l] * loops[l].target_stride_bytes;
    }
    LADING_TRY(compare_run_of(load, sight, work, step, read + from, to));
    std::size_t l = index.size();
    while (l > 0 && ++index[l - 1] == loops[l - 1].count) index[--l] = 0;
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
    if (load.works[t]->memory.received) continue;
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
    if (load.works[t]->memory.received) continue;  // compared where it is read
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
