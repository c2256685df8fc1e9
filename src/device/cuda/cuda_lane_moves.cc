// CudaLane: moves out of staging buffers, by copies or by kernels.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/element_bytes.h"
#include "base/loop_nest.h"
#include "device/cuda/cuda_lane.h"

namespace lading::device::cuda {
namespace {

// Smaller ones share one copy and one kernel with their neighbours: a copy costs a few microseconds, whatever its size.
constexpr std::uint64_t kDirectBytes = 64 << 10;
// Rows below this are slow for the copy engine; a kernel gathers them.
constexpr std::uint64_t kRowBytes = 512;
constexpr std::uint64_t kMaxPitchBytes = std::uint64_t{1} << 30;
constexpr std::size_t kMaxMoveJobs = JobPages::kPageBytes / sizeof(MoveJob);
constexpr std::uint64_t kBounceAlignmentBytes = 16;

std::uint64_t reach_bytes(const Move& move) {
  const bool has_codes = move.scaling != nullptr && move.scaling->scales->code.has_value();
  const std::uint64_t run_bytes =
      has_codes ? ((move.scaling->first_code + move.run_elems) * bits(*move.scaling->scales->code) + 7) / 8
                : bytes_of_elems(move.run_elems, move.from);
  return run_bytes + source_reach(move.loops);
}

bool is_empty(const Move& move) { return move.run_elems == 0 || rounds_of(move.loops) == 0; }

// Runs that follow each other on both sides are one run.
struct Rows {
  std::uint64_t run_bytes = 0;
  std::vector<ByteLoop> loops;  ///< outermost first, none that could be merged away
};

Rows rows_of(const Move& move) {
  Rows rows{bytes_of_elems(move.run_elems, move.from), {}};
  for (std::size_t i = move.loops.size(); i-- > 0;) {
    const ByteLoop& loop = move.loops[i];
    if (loop.count == 1) continue;
    if (rows.loops.empty() && loop.source_stride_bytes == rows.run_bytes &&
        loop.target_stride_bytes == rows.run_bytes) {
      rows.run_bytes *= loop.count;
    } else {
      rows.loops.insert(rows.loops.begin(), loop);
    }
  }
  return rows;
}

}  // namespace

Result<void> CudaLane::move(const Move& move) {
  if (is_empty(move)) return {};
  return keep(is_lent_ && !is_bouncing_ ? move_from_staging_buffer(move) : move_from_elsewhere(move));
}

Result<void> CudaLane::move_from_staging_buffer(const Move& move) {
  LADING_CHECK(move.source >= current_buffer().data &&
               move.source + reach_bytes(move) <= current_buffer().data + stride_bytes(options_));
  if (move.scaling != nullptr) {
    add_dequantize_jobs(move);
    return {};
  }
  if (move.from == move.to) {
    const Rows rows = rows_of(move);
    if (rows.loops.empty() && rows.run_bytes >= kDirectBytes) {
      return copy(device_address(move.target), move.source, rows.run_bytes);
    }
    if (rows.loops.size() == 1 && rows.run_bytes >= kRowBytes) {
      const ByteLoop& loop = rows.loops.front();
      const bool fits = loop.source_stride_bytes >= rows.run_bytes && loop.target_stride_bytes >= rows.run_bytes &&
                        std::max(loop.source_stride_bytes, loop.target_stride_bytes) < kMaxPitchBytes;
      if (fits && rows.run_bytes * loop.count >= kDirectBytes) {
        RowCopy job;
        job.source_host = move.source;
        job.source_pitch_bytes = loop.source_stride_bytes;
        job.target_device = device_address(move.target);
        job.target_pitch_bytes = loop.target_stride_bytes;
        job.row_bytes = rows.run_bytes;
        job.rows = loop.count;
        copies_are_out_ = true;
        return gpu_->call("copying rows to it", gpu_->driver().copy_rows, static_cast<const RowCopy*>(&job),
                          streams_.copies);
      }
    }
  }
  add_move_jobs(move);
  return {};
}

// Values of the caller's stand in memory that is not pinned: they take the way of file bytes, through buffers. Many
// short runs share one.
Result<void> CudaLane::move_from_elsewhere(const Move& move) {
  LADING_CHECK(move.loops.empty() && move.scaling == nullptr);
  // Eight elements of a packed dtype end at a byte.
  const std::uint64_t at_once = std::max<std::uint64_t>(8, options_.staging_buffer_bytes * 8 / bits(move.from) / 8 * 8);
  for (std::uint64_t done = 0; done < move.run_elems; done += at_once) {
    const std::uint64_t elems = std::min(at_once, move.run_elems - done);
    const std::uint64_t size_bytes = bytes_of_elems(elems, move.from);
    if (is_bouncing_ && bounced_bytes_ + size_bytes > options_.staging_buffer_bytes) LADING_TRY(end_bounce());
    if (!is_bouncing_) {
      LADING_TRY(acquire_staging_buffer());
      is_bouncing_ = true;
      bounced_bytes_ = 0;
    }
    Move part = move;
    part.source = current_buffer().data + bounced_bytes_;
    part.target = move.target + bytes_of_elems(done, move.to);
    part.run_elems = elems;
    std::memcpy(current_buffer().data + bounced_bytes_, move.source + bytes_of_elems(done, move.from), size_bytes);
    bounced_bytes_ += (size_bytes + kBounceAlignmentBytes - 1) / kBounceAlignmentBytes * kBounceAlignmentBytes;
    LADING_TRY(move_from_staging_buffer(part));
  }
  return {};
}

Result<void> CudaLane::end_bounce() {
  if (!std::exchange(is_bouncing_, false)) return {};
  return release_staging_buffer();
}

void CudaLane::add_move_jobs(const Move& move) {
  // The kernel knows six loops; those outside of them are walked here.
  if (move.loops.size() > kMaxJobLoops) {
    const ByteLoop& outer = move.loops.front();
    for (std::uint64_t i = 0; i < outer.count; ++i) {
      Move part = move;
      part.source += i * outer.source_stride_bytes;
      part.target += i * outer.target_stride_bytes;
      part.loops = move.loops.subspan(1);
      add_move_jobs(part);
    }
    return;
  }
  const bool is_packed = bits(move.from) % 8 != 0;
  MoveJob job = {};
  job.source = static_cast<std::uint64_t>(move.source - current_buffer().data);
  job.target = device_address(move.target);
  job.run_elems = is_packed ? bytes_of_elems(move.run_elems, move.from) : move.run_elems;
  job.cast.from = static_cast<std::uint32_t>(is_packed ? DType::kU8 : move.from);
  job.cast.to = static_cast<std::uint32_t>(is_packed ? DType::kU8 : move.to);
  std::uint64_t elems = job.run_elems;
  for (const ByteLoop& loop : move.loops) {
    if (loop.count == 1) continue;
    job.loops[job.loop_count++] = {loop.count, loop.source_stride_bytes, loop.target_stride_bytes};
    elems *= loop.count;
  }
  // Threads beside each other write bytes beside each other. What they read lies together in the twin.
  std::stable_sort(job.loops, job.loops + job.loop_count,
                   [](const JobLoop& a, const JobLoop& b) { return a.target_stride_bytes > b.target_stride_bytes; });
  const std::uint64_t widest = is_packed ? 1 : std::max(bits(move.from), bits(move.to)) / 8;
  const std::uint64_t at_once = kJobBytes / widest;
  for (std::uint64_t begin = 0; begin < elems; begin += at_once) {
    job.first_elem = begin;
    job.elems = std::min(at_once, elems - begin);
    moves_.push_back(job);
  }
  note_read(move);
}

void CudaLane::note_read(const Move& move) {
  const auto begin_bytes = static_cast<std::uint64_t>(move.source - current_buffer().data);
  const bool is_first = moves_begin_bytes_ == moves_end_bytes_;
  moves_begin_bytes_ = is_first ? begin_bytes : std::min(moves_begin_bytes_, begin_bytes);
  moves_end_bytes_ = std::max(moves_end_bytes_, begin_bytes + reach_bytes(move));
}

// Where kernels find what is in the buffer: in its twin, which is filled here; or, where the GPU has no memory for
// that, in the buffer itself, over the bus.
Result<Address> CudaLane::source_of_kernels() {
  const Driver& driver = gpu_->driver();
  StagingBuffer& here = current_buffer();
  if (here.twin == 0) {
    const Status status = gpu_->call_freely(driver.allocate, &here.twin, stride_bytes(options_));
    if (status == kOutOfMemory && here.is_pinned) {
      gpu_->add_note(
          fmt::format("{}: no device memory is left for staging; casts read host memory and are slower", gpu_->name()));
      here.twin = 0;
      // The driver is asked for the address of what was pinned, not of a place inside it.
      std::byte* const pinned = is_pinned_ ? slab_.bytes().data() : here.data;
      Address mapped = 0;
      LADING_TRY(gpu_->call("mapping pinned memory", driver.mapped_address, &mapped, static_cast<void*>(pinned), 0U));
      return mapped + static_cast<std::uint64_t>(here.data - pinned);
    }
    LADING_TRY(gpu_->judge("allocating staging memory", status));
  }
  if (here.twin_is_read) LADING_TRY(order(streams_.copies, here.distributed));
  LADING_TRY(
      copy(here.twin + moves_begin_bytes_, here.data + moves_begin_bytes_, moves_end_bytes_ - moves_begin_bytes_));
  return here.twin;
}

Result<void> CudaLane::launch_moves(Address source) {
  for (MoveJob& job : moves_) job.source += source;
  for (std::size_t begin = 0; begin < moves_.size(); begin += kMaxMoveJobs) {
    const auto jobs = std::span<const MoveJob>(moves_).subspan(begin, std::min(kMaxMoveJobs, moves_.size() - begin));
    LADING_ASSIGN_OR_RETURN(Address list, pages_.put(std::as_bytes(jobs)));
    auto count = static_cast<std::uint32_t>(jobs.size());
    void* parameters[] = {&list, &count};
    LADING_TRY(launch(gpu_->move_kernel(), count, parameters));
  }
  LADING_TRY(launch_dequantizations(source));
  drop_moves();
  return {};
}

void CudaLane::drop_moves() {
  moves_.clear();
  dequantizations_.clear();
  moves_begin_bytes_ = moves_end_bytes_ = 0;
}

}  // namespace lading::device::cuda
