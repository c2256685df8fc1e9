#include "exec/read_task.h"

#include <algorithm>
#include <utility>

#include "base/element_bytes.h"
#include "base/inline_vector.h"
#include "base/loop_nest.h"
#include "plan/equal_sources.h"

namespace lading::exec {
namespace {

using plan::Read;
using plan::Transfer;

using Loops = std::vector<ByteLoop>;

// Whether a loop steps over whole rows of the read; all others stay within one.
bool is_over_rows(const ByteLoop& loop, const Read& read) {
  return read.count > 1 && loop.source_stride_bytes >= read.stride_bytes;
}

void add_step(Step step, DType storage, ReadTask& task) {
  step.target_size_bytes = bytes_of_elems(step.run_elems, storage);
  step.target_size_bytes *= rounds_of(step.loops);
  task.steps.push_back(std::move(step));
}

// Cuts transfers that take the same bytes in the same steps. The loops are by source stride, greatest first: those over
// rows, then those within a row. Each level is cut only where what is inside of it does not fit in a buffer.
class Splitter {
 public:
  Splitter(const plan::Plan& plan, const ReadJob& job, std::vector<ReadTask>& tasks)
      : job_(job), read_(*job.read), tasks_(tasks), from_(plan.sources[job.served[0].transfer->source]) {
    for (const Served& one : job.served) loops_.push_back(plan::loops_by_source(*one.transfer));
    for (const ByteLoop& loop : loops_[0]) row_loops_ += is_over_rows(loop, read_) ? 1U : 0U;
    is_in_place_ =
        job.may_be_in_place && job.served.size() == 1 && !from_.scaling && from_.dtype == job.served[0].storage;
  }

  void run() {
    Place place;
    place.source_bytes = job_.served[0].transfer->source_begin_bytes;
    place.run_elems = job_.served[0].transfer->run_elems;
    for (const Served& one : job_.served) place.target_bytes.push_back(one.transfer->target_begin_bytes);
    split(0, place);
  }

 private:
  struct Place {
    std::uint64_t source_bytes = 0;
    std::uint64_t run_elems = 0;
    InlineVector<std::uint64_t, 2> target_bytes;  // by transfer
  };

  // How far everything from loop `first` inwards reaches in a row.
  [[nodiscard]] std::uint64_t reach(std::size_t first, std::uint64_t run_elems) const {
    std::uint64_t bytes = run_bytes(run_elems);
    for (std::size_t i = first; i < loops_[0].size(); ++i) {
      bytes += (loops_[0][i].count - 1) * loops_[0][i].source_stride_bytes;
    }
    return bytes;
  }

  // Of the transfers that have equal sources, all that have more than one code in a run begin it at the same one.
  [[nodiscard]] std::uint64_t run_bytes(std::uint64_t elems) const {
    return from_.run_bytes(elems, job_.served[0].transfer->first_code);
  }

  [[nodiscard]] Place moved(Place place, std::size_t loop, std::uint64_t rounds) const {
    place.source_bytes += rounds * loops_[0][loop].source_stride_bytes;
    for (std::size_t t = 0; t < loops_.size(); ++t) {
      place.target_bytes[t] += rounds * loops_[t][loop].target_stride_bytes;
    }
    return place;
  }

  void split(std::size_t first, const Place& place) {
    const std::uint64_t all_bytes = first >= row_loops_ ? reach(first, place.run_elems) : 0;
    if (first >= row_loops_ && all_bytes <= job_.staging_buffer_bytes)
      return emit(place, all_bytes, {first, rounds_of(first), false});
    if (first == loops_[0].size()) return split_run(place);
    const ByteLoop& loop = loops_[0][first];
    const bool is_row = first + 1 == row_loops_;
    const bool inside_fits = first + 1 >= row_loops_ && reach(first + 1, place.run_elems) <= job_.staging_buffer_bytes;
    if (!inside_fits) {
      for (std::uint64_t i = 0; i < loop.count; ++i) split(first + 1, moved(place, first, i));
      return;
    }
    const std::uint64_t inside_bytes = reach(first + 1, place.run_elems);
    const std::uint64_t at_once =
        is_row ? job_.staging_buffer_bytes / inside_bytes
               : 1 + (job_.staging_buffer_bytes - inside_bytes) / std::max<std::uint64_t>(1, loop.source_stride_bytes);
    for (std::uint64_t i = 0; i < loop.count; i += at_once) {
      const std::uint64_t count = std::min(at_once, loop.count - i);
      const std::uint64_t row_bytes = is_row ? inside_bytes : (count - 1) * loop.source_stride_bytes + inside_bytes;
      emit(moved(place, first, i), row_bytes, {first, count, is_row});
    }
  }

  void split_run(const Place& place) {
    // Cuts fall on whole bytes on both sides: eight elements always fill whole bytes. Runs of codes that begin inside a
    // byte touch one byte more.
    const std::uint64_t element_bits = from_.element_bits();
    const std::uint64_t room_bytes = job_.staging_buffer_bytes - (from_.codes_per_byte() > 1 ? 1 : 0);
    const std::uint64_t at_once = std::max<std::uint64_t>(8, room_bytes * 8 / element_bits / 8 * 8);
    for (std::uint64_t i = 0; i < place.run_elems; i += at_once) {
      Place here = place;
      here.run_elems = std::min(at_once, place.run_elems - i);
      here.source_bytes += i / 8 * element_bits;
      for (std::size_t t = 0; t < loops_.size(); ++t) {
        here.target_bytes[t] += bytes_of_elems(i, job_.served[t].storage);
      }
      emit(here, run_bytes(here.run_elems), {loops_[0].size(), 1, false});
    }
  }

  // The loops of a task: which is the outermost, how many of its rounds, and whether each of them is a row.
  struct Part {
    std::size_t first = 0;
    std::uint64_t rounds = 1;
    bool is_row = false;
  };

  [[nodiscard]] std::uint64_t rounds_of(std::size_t loop) const {
    return loop < loops_[0].size() ? loops_[0][loop].count : 1;
  }

  void emit(const Place& place, std::uint64_t row_bytes, const Part& part) {
    ReadTask task;
    task.device = job_.device;
    task.file = read_.file;
    task.begin_bytes = place.source_bytes;
    task.row_bytes = row_bytes;
    task.rows = part.is_row ? part.rounds : 1;
    if (part.is_row) task.row_stride_bytes = loops_[0][part.first].source_stride_bytes;
    for (std::size_t t = 0; t < loops_.size(); ++t) {
      Step step;
      step.destination = job_.served[t].destination;
      step.source = job_.served[t].transfer->source;
      step.target_begin_bytes = place.target_bytes[t];
      step.run_elems = place.run_elems;
      step.first_code = job_.served[t].transfer->first_code;
      for (std::size_t i = part.first; i < loops_[t].size(); ++i) {
        const ByteLoop& loop = loops_[t][i];
        const std::uint64_t count = i == part.first ? part.rounds : loop.count;
        // Rows lie side by side in the buffer.
        const std::uint64_t stride = i == part.first && part.is_row ? row_bytes : loop.source_stride_bytes;
        if (count > 1) step.loops.push_back({count, stride, loop.target_stride_bytes});
      }
      add_step(std::move(step), job_.served[t].storage, task);
    }
    const std::size_t inner = task.steps[0].loops.size() - (task.rows > 1 ? 1 : 0);
    if (is_in_place_ && inner == 0) task.mode = ReadTask::Mode::kInPlace;
    tasks_.push_back(std::move(task));
  }

  const ReadJob& job_;
  const Read& read_;
  std::vector<ReadTask>& tasks_;
  const plan::Source& from_;
  std::vector<Loops> loops_;   // by transfer; the same but for strides in the destination
  std::size_t row_loops_ = 0;  // the first ones
  bool is_in_place_ = false;
};

// All rows side by side in one buffer.
ReadTask whole_read(const ReadJob& job) {
  const Read& read = *job.read;
  const auto packed = [&](std::uint64_t distance) {
    if (read.count == 1) return distance;
    return distance / read.stride_bytes * read.size_bytes + distance % read.stride_bytes;
  };
  ReadTask task;
  task.device = job.device;
  task.file = read.file;
  task.begin_bytes = read.begin_bytes;
  task.row_bytes = read.size_bytes;
  task.rows = read.count;
  task.row_stride_bytes = read.stride_bytes;
  for (const Served& one : job.served) {
    const Transfer& transfer = *one.transfer;
    Step step;
    step.destination = one.destination;
    step.source = transfer.source;
    step.source_begin_bytes = packed(transfer.source_begin_bytes - read.begin_bytes);
    step.target_begin_bytes = transfer.target_begin_bytes;
    step.run_elems = transfer.run_elems;
    step.first_code = transfer.first_code;
    for (const ByteLoop& loop : plan::loops_by_source(transfer)) {
      const std::uint64_t stride =
          is_over_rows(loop, read) ? packed(loop.source_stride_bytes) : loop.source_stride_bytes;
      step.loops.push_back({loop.count, stride, loop.target_stride_bytes});
    }
    add_step(std::move(step), one.storage, task);
  }
  return task;
}

}  // namespace

void split_read(const plan::Plan& plan, const ReadJob& job, std::vector<ReadTask>& tasks) {
  const auto is_like_first = [&](const Served& one) {
    return plan::have_equal_sources(*job.served[0].transfer, *one.transfer);
  };
  if (std::all_of(job.served.begin() + 1, job.served.end(), is_like_first)) {
    Splitter(plan, job, tasks).run();
  } else if (job.read->total_bytes() <= job.staging_buffer_bytes) {
    tasks.push_back(whole_read(job));
  } else {
    for (const Served& one : job.served) {
      ReadJob alone = job;
      alone.served = {one};
      Splitter(plan, alone, tasks).run();
    }
  }
}

bool is_dense(const Step& step) {
  std::vector<ByteLoop> loops = step.loops;
  std::sort(loops.begin(), loops.end(),
            [](const ByteLoop& a, const ByteLoop& b) { return a.target_stride_bytes < b.target_stride_bytes; });
  std::uint64_t size_bytes = step.target_size_bytes / rounds_of(loops);
  for (const ByteLoop& loop : loops) {
    if (loop.target_stride_bytes != size_bytes) return false;
    size_bytes *= loop.count;
  }
  return true;
}

}  // namespace lading::exec
