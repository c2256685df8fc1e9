#include "exec/schedule.h"
#include "base/element_bytes.h"

#include <algorithm>
#include <tuple>

namespace lading::exec {
namespace {

using device::Loop;
using plan::Destination;
using plan::Plan;
using plan::Transfer;
using plan::TransferLoop;

// Below this, one read for several stretches and a copy beats a read each.
constexpr std::uint64_t kAloneBytes = 32 << 10;
constexpr std::size_t kNone = static_cast<std::size_t>(-1);

// Cuts one transfer into tasks with one step each.
class Cutter {
 public:
  Cutter(const Plan& plan, const ScheduleOptions& options, std::vector<ReadTask>& tasks)
      : plan_(plan), options_(options), tasks_(tasks) {}

  void cut(const Wanted& wanted, DType storage) {
    const Transfer& transfer = *wanted.transfer;
    const plan::Source& source = plan_.sources[transfer.source];
    source_ = transfer.source;
    target_ = wanted.target;
    from_ = source.dtype;
    to_ = storage;
    file_ = source.file;
    device_ = wanted.device;
    slot_bytes_ = options_.slot_bytes[wanted.device];
    gap_bytes_ = options_.gap_of(file_);
    in_place_ = wanted.in_place && from_ == to_;
    loops_ = transfer.loops;
    std::sort(loops_.begin(), loops_.end(), [](const TransferLoop& a, const TransferLoop& b) {
      return a.source_stride_bytes > b.source_stride_bytes;
    });
    split(0, {transfer.source_begin_bytes, transfer.target_begin_bytes, transfer.run_elems});
  }

 private:
  struct Place {
    std::uint64_t source_bytes = 0;
    std::uint64_t target_bytes = 0;
    std::uint64_t run_elems = 0;
  };

  // Of everything from loop `first` inwards: how far it reaches in the source, and whether without great gaps.
  struct Reach {
    std::uint64_t bytes = 0;
    bool dense = true;
  };
  [[nodiscard]] Reach reach(std::size_t first, std::uint64_t run_elems) const {
    Reach reach{bytes_of_elems(run_elems, from_), true};
    for (std::size_t i = loops_.size(); i-- > first;) {
      if (loops_[i].count == 1) continue;
      if (loops_[i].source_stride_bytes > reach.bytes + gap_bytes_) reach.dense = false;
      reach.bytes = std::max(reach.bytes, reach.bytes + (loops_[i].count - 1) * loops_[i].source_stride_bytes);
    }
    return reach;
  }

  void split(std::size_t first, const Place& place) {
    const Reach all = reach(first, place.run_elems);
    if (all.dense && all.bytes <= slot_bytes_) return emit(place, all.bytes, inner_loops(first));
    if (first == loops_.size()) return split_run(place);
    const TransferLoop& loop = loops_[first];
    const Reach inside = reach(first + 1, place.run_elems);
    const bool inside_fits = inside.dense && inside.bytes <= slot_bytes_;
    std::uint64_t at_once = 1;
    bool rows = false;
    if (inside_fits && loop.source_stride_bytes <= inside.bytes + gap_bytes_) {
      at_once += (slot_bytes_ - inside.bytes) / std::max<std::uint64_t>(1, loop.source_stride_bytes);
    } else if (inside_fits) {
      rows = true;
      at_once = slot_bytes_ / inside.bytes;
    }
    for (std::uint64_t i = 0; i < loop.count; i += at_once) {
      const std::uint64_t count = std::min(at_once, loop.count - i);
      const Place here{place.source_bytes + i * loop.source_stride_bytes,
                       place.target_bytes + i * loop.target_stride_bytes, place.run_elems};
      if (rows) {
        emit_rows(here, inside.bytes, {count, loop.source_stride_bytes, loop.target_stride_bytes}, first + 1);
      } else if (inside_fits) {
        std::vector<Loop> loops = inner_loops(first + 1);
        if (count > 1) loops.insert(loops.begin(), {count, loop.source_stride_bytes, loop.target_stride_bytes});
        emit(here, (count - 1) * loop.source_stride_bytes + inside.bytes, std::move(loops));
      } else {
        split(first + 1, here);
      }
    }
  }

  void split_run(const Place& place) {
    // Cuts fall on whole bytes on both sides: eight elements always fill whole bytes.
    const std::uint64_t at_once = std::max<std::uint64_t>(8, slot_bytes_ * 8 / bits(from_) / 8 * 8);
    for (std::uint64_t i = 0; i < place.run_elems; i += at_once) {
      const std::uint64_t elems = std::min(at_once, place.run_elems - i);
      emit({place.source_bytes + bytes_of_elems(i, from_), place.target_bytes + bytes_of_elems(i, to_), elems},
           bytes_of_elems(elems, from_), {});
    }
  }

  [[nodiscard]] std::vector<Loop> inner_loops(std::size_t first) const {
    std::vector<Loop> loops;
    for (std::size_t i = first; i < loops_.size(); ++i) {
      if (loops_[i].count > 1)
        loops.push_back({loops_[i].count, loops_[i].source_stride_bytes, loops_[i].target_stride_bytes});
    }
    return loops;
  }

  void emit(const Place& place, std::uint64_t size_bytes, std::vector<Loop> loops) {
    add({ReadTask::Mode::kStaged, device_, file_, place.source_bytes, size_bytes, 1, 0, {}}, place, std::move(loops));
  }

  void emit_rows(const Place& place, std::uint64_t row_bytes, const TransferLoop& rows, std::size_t inside) {
    std::vector<Loop> loops = inner_loops(inside);
    // The rows lie side by side in the slot.
    loops.insert(loops.begin(), {rows.count, row_bytes, rows.target_stride_bytes});
    add({ReadTask::Mode::kStaged,
         device_,
         file_,
         place.source_bytes,
         row_bytes,
         rows.count,
         rows.source_stride_bytes,
         {}},
        place, std::move(loops));
  }

  void add(ReadTask task, const Place& place, std::vector<Loop> loops) {
    Step step{target_, source_, 0, place.target_bytes, place.run_elems, std::move(loops), 0};
    step.target_size_bytes = bytes_of_elems(place.run_elems, to_);
    for (const Loop& loop : step.loops) step.target_size_bytes *= loop.count;
    const std::uint64_t inner = task.rows > 1 ? step.loops.size() - 1 : step.loops.size();
    if (in_place_ && inner == 0) task.mode = ReadTask::Mode::kInPlace;
    task.steps.push_back(std::move(step));
    tasks_.push_back(std::move(task));
  }

  const Plan& plan_;
  const ScheduleOptions& options_;
  std::vector<ReadTask>& tasks_;
  std::vector<TransferLoop> loops_;  // by source stride, greatest first
  std::uint32_t source_ = 0;
  std::uint32_t target_ = 0;
  std::uint32_t file_ = 0;
  std::uint32_t device_ = 0;
  std::uint64_t slot_bytes_ = 0;
  std::uint64_t gap_bytes_ = 0;
  DType from_ = DType::kF32;
  DType to_ = DType::kF32;
  bool in_place_ = false;
};

bool goes_alone(const ReadTask& task) {
  return task.rows > 1 || (task.mode == ReadTask::Mode::kInPlace && task.row_bytes >= kAloneBytes);
}

// Tasks in file order; small ones and those that overlap become one.
std::vector<ReadTask> join(std::vector<ReadTask> tasks, const ScheduleOptions& options) {
  std::sort(tasks.begin(), tasks.end(), [](const ReadTask& a, const ReadTask& b) {
    return std::tuple(a.file, a.begin_bytes, a.steps[0].target) < std::tuple(b.file, b.begin_bytes, b.steps[0].target);
  });
  std::vector<ReadTask> joined;
  std::vector<std::size_t> last_of(options.slot_bytes.size(), kNone);  // by device
  for (ReadTask& task : tasks) {
    ReadTask* const last = last_of[task.device] == kNone ? nullptr : &joined[last_of[task.device]];
    if (last != nullptr && last->file == task.file && last->rows == 1 && task.rows == 1) {
      const std::uint64_t last_end = last->begin_bytes + last->row_bytes;
      const std::uint64_t end = std::max(last_end, task.begin_bytes + task.row_bytes);
      const bool overlaps = task.begin_bytes < last_end;
      const bool near =
          task.begin_bytes <= last_end + options.gap_of(task.file) && !goes_alone(*last) && !goes_alone(task);
      if ((overlaps || near) && end - last->begin_bytes <= options.slot_bytes[task.device]) {
        for (Step& step : task.steps) {
          step.source_begin_bytes += task.begin_bytes - last->begin_bytes;
          last->steps.push_back(std::move(step));
        }
        last->row_bytes = end - last->begin_bytes;
        last->mode = ReadTask::Mode::kStaged;
        continue;
      }
    }
    last_of[task.device] = joined.size();
    joined.push_back(std::move(task));
  }
  return joined;
}

}  // namespace

std::vector<Target> targets_of(const Plan& plan) {
  std::vector<Target> targets;
  for (std::uint32_t rank = 0; rank < plan.ranks.size(); ++rank) {
    for (std::uint32_t d = 0; d < plan.ranks[rank].destinations.size(); ++d) targets.push_back({rank, d});
  }
  return targets;
}

std::vector<ReadTask> schedule_reads(const Plan& plan, const std::vector<Target>& targets,
                                     const std::vector<Wanted>& wanted, const ScheduleOptions& options) {
  std::vector<ReadTask> tasks;
  Cutter cutter(plan, options, tasks);
  for (const Wanted& want : wanted) {
    if (want.transfer->is_fill() || want.transfer->elems() == 0) continue;
    const Target& target = targets[want.target];
    const Destination& destination = plan.ranks[target.rank].destinations[target.destination];
    cutter.cut(want, plan.statements[destination.statement].storage);
  }
  return join(std::move(tasks), options);
}

bool is_dense(const Step& step) {
  std::vector<Loop> loops = step.loops;
  std::sort(loops.begin(), loops.end(),
            [](const Loop& a, const Loop& b) { return a.target_stride_bytes < b.target_stride_bytes; });
  std::uint64_t product = 1;
  for (const Loop& loop : loops) product *= loop.count;
  std::uint64_t size_bytes = step.target_size_bytes / product;
  for (const Loop& loop : loops) {
    if (loop.target_stride_bytes != size_bytes) return false;
    size_bytes *= loop.count;
  }
  return true;
}

}  // namespace lading::exec
