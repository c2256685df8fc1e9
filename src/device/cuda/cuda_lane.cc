#include "device/cuda/cuda_lane.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/element_bytes.h"
#include "base/loop_nest.h"

namespace lading::device::cuda {
namespace {

// Smaller ones share one copy and one kernel with their neighbours: a copy costs a few microseconds, whatever its size.
constexpr std::uint64_t kDirectBytes = 64 << 10;
// Rows below this are slow for the copy engine; a kernel gathers them.
constexpr std::uint64_t kRowBytes = 512;
constexpr std::uint64_t kMaxPitchBytes = std::uint64_t{1} << 30;
// Digests wait until a launch is worth it.
constexpr std::uint64_t kDigestFlushBytes = 64 << 20;
constexpr std::size_t kMaxMoveJobs = JobPages::kPageBytes / sizeof(MoveJob);
constexpr std::size_t kMaxDigestJobs = JobPages::kPageBytes / sizeof(DigestRange);
constexpr std::uint64_t kMaxBlocks = 1024;
constexpr std::uint64_t kElemsPerThread = 8;
constexpr std::uint64_t kBounceAlignmentBytes = 16;

Address address_of(const std::byte* memory) { return reinterpret_cast<Address>(memory); }

std::uint64_t blocks_for(std::uint64_t elems) {
  const std::uint64_t per_block = kBlockThreads * kElemsPerThread;
  return std::clamp<std::uint64_t>((elems + per_block - 1) / per_block, 1, kMaxBlocks);
}

// Whole pages are pinned.
constexpr std::size_t kPageBytes = kSlotAlignmentBytes;
std::size_t stride_bytes(const LaneOptions& options) {
  return (options.slot_bytes + kPageBytes - 1) / kPageBytes * kPageBytes + kSlotAlignmentBytes;
}

std::uint64_t reach_bytes(const Move& move) {
  return bytes_of_elems(move.run_elems, move.from) + source_reach(move.loops);
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

std::size_t CudaLane::size_bytes(const LaneOptions& options) {
  return options.slots * stride_bytes(options) + JobPages::kSizeBytes;
}

Result<std::unique_ptr<Lane>> CudaLane::open(std::shared_ptr<Gpu> gpu, const LaneOptions& options, Address sums) {
  std::unique_ptr<CudaLane> lane(new CudaLane(std::move(gpu), options, sums));
  LADING_TRY(lane->open_streams());
  return std::unique_ptr<Lane>(std::move(lane));
}

CudaLane::CudaLane(std::shared_ptr<Gpu> gpu, const LaneOptions& options, Address sums)
    : gpu_(std::move(gpu)),
      options_(options),
      sums_(sums),
      pages_(gpu_),
      slots_(options.slots),
      slots_in_use_(options.slots) {}

Result<void> CudaLane::make_event(Event& event) {
  const unsigned flags = kEventWithoutTiming | (options_.wait == Wait::kSleep ? kEventBlockingSync : 0);
  return gpu_->call("creating an event", gpu_->driver().create_event, &event, flags);
}

Result<void> CudaLane::record(Event event, Stream stream) {
  return gpu_->call("recording an event", gpu_->driver().record_event, event, stream);
}

Result<void> CudaLane::order(Stream stream, Event event) {
  return gpu_->call("ordering streams", gpu_->driver().wait_event, stream, event, 0U);
}

Result<void> CudaLane::open_streams() {
  const Driver& driver = gpu_->driver();
  LADING_TRY(gpu_->call("creating a stream", driver.create_stream, &streams_.copies, kStreamNonBlocking));
  LADING_TRY(gpu_->call("creating a stream", driver.create_stream, &streams_.kernels, kStreamNonBlocking));
  for (Slot& slot : slots_) {
    LADING_TRY(make_event(slot.copied));
    LADING_TRY(make_event(slot.distributed));
  }
  return make_event(all_copied_);
}

Status CudaLane::pin(std::byte* memory, std::size_t size_bytes) {
  const unsigned flags = kRegisterPortable | kRegisterMapped;
  return gpu_->call_freely(gpu_->driver().register_host, static_cast<void*>(memory), size_bytes, flags);
}

Result<void> CudaLane::prepare() {
  if (is_prepared_) return {};
  LADING_ASSIGN_OR_RETURN(slab_, Slab::allocate(size_bytes(options_)));
  const std::span<std::byte> memory = slab_.bytes();
  for (std::size_t i = 0; i < memory.size(); i += kPageBytes) memory[i] = std::byte{0};
  for (std::size_t i = 0; i < slots_.size(); ++i) slots_[i].data = memory.data() + i * stride_bytes(options_);
  const Status status = pin(memory.data(), memory.size());
  if (gpu_->is_lost()) return gpu_->judge("pinning memory", status);
  Address mapped = 0;
  if (status == kSuccess) {
    is_pinned_ = true;
    for (Slot& slot : slots_) slot.is_pinned = true;
    LADING_TRY(gpu_->call("mapping pinned memory", gpu_->driver().mapped_address, &mapped,
                          static_cast<void*>(memory.data()), 0U));
    mapped += memory.size() - JobPages::kSizeBytes;
  } else {
    LADING_TRY(pin_what_can_be(status));
  }
  LADING_TRY(pages_.open(memory.last(JobPages::kSizeBytes), mapped, streams_.kernels));
  is_prepared_ = true;
  return {};
}

// Slot by slot, until one is refused: the ring is smaller then. Where none can be pinned, the driver copies through
// memory of its own, and one slot is as good as two.
Result<void> CudaLane::pin_what_can_be(Status refusal) {
  gpu_->add_note(
      fmt::format("{}: the staging ring is smaller, because host memory could not be pinned ({}); loading is "
                  "slower (raise the memlock limit)",
                  gpu_->name(), gpu_->driver().describe(refusal)));
  for (Slot& slot : slots_) {
    const Status status = pin(slot.data, stride_bytes(options_));
    if (gpu_->is_lost()) return gpu_->judge("pinning memory", status);
    slot.is_pinned = status == kSuccess;
    if (!slot.is_pinned) break;
  }
  const auto pinned = static_cast<std::size_t>(
      std::count_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.is_pinned; }));
  slots_in_use_ = std::max<std::size_t>(1, pinned);
  return {};
}

CudaLane::~CudaLane() {
  const Driver& driver = gpu_->driver();
  const bool is_idle = wait().has_value();
  for (const Slot& slot : slots_) {
    if (slot.is_pinned && !is_pinned_) gpu_->call_freely(driver.unregister_host, static_cast<void*>(slot.data));
    if (slot.copied != nullptr) gpu_->call_freely(driver.destroy_event, slot.copied);
    if (slot.distributed != nullptr) gpu_->call_freely(driver.destroy_event, slot.distributed);
    if (slot.twin != 0) gpu_->call_freely(driver.free, slot.twin);
  }
  if (is_pinned_) gpu_->call_freely(driver.unregister_host, static_cast<void*>(slab_.bytes().data()));
  if (all_copied_ != nullptr) gpu_->call_freely(driver.destroy_event, all_copied_);
  for (const Stream stream : {streams_.copies, streams_.kernels}) {
    if (stream != nullptr) gpu_->call_freely(driver.destroy_stream, stream);
  }
  // One that does not say that it is done may still read: then the slots stay where they are.
  if (!is_idle || gpu_->is_lost()) slab_.leak();
}

Result<void> CudaLane::keep(Result<void> result) {
  if (!result) has_failed_ = true;
  return result;
}

// How events order the host and the two streams (job pages have events of their own):
//   the host reads into a slot        after `copied`        the GPU has read the slot
//   kernels move out of a twin        after `copied`        the twin is filled
//   a copy fills a twin again         after `distributed`   kernels have read the twin
//   kernels digest, fill or sample    after `all_copied_`   the copies that are out have arrived
Result<void> CudaLane::wait_for(Slot& slot) {
  if (!slot.is_busy) return {};
  slot.is_busy = false;
  return gpu_->call("waiting for a copy", gpu_->driver().synchronize_event, slot.copied);
}

Result<std::span<std::byte>> CudaLane::acquire_slot() {
  LADING_TRY(keep(end_bounce()));
  LADING_TRY(keep(prepare()));
  if (!is_lent_) {
    current_ = (current_ + 1) % slots_in_use_;
    LADING_TRY(keep(wait_for(slot())));
  }
  is_lent_ = true;
  drop_moves();
  return std::span(slot().data, options_.slot_bytes + kSlotAlignmentBytes);
}

Result<void> CudaLane::release_slot() {
  is_lent_ = false;
  return keep(release());
}

Result<void> CudaLane::release() {
  Address source = 0;
  if (!moves_.empty()) {
    LADING_ASSIGN_OR_RETURN(source, source_of_kernels());
  }
  slot().is_busy = true;
  LADING_TRY(record(slot().copied, streams_.copies));
  if (moves_.empty()) return {};
  LADING_TRY(order(streams_.kernels, slot().copied));
  LADING_TRY(launch_moves(source));
  if (slot().twin != 0) {
    slot().twin_is_read = true;
    return record(slot().distributed, streams_.kernels);
  }
  // The kernels read the slot itself, after all copies: `copied` now means that both are done.
  return record(slot().copied, streams_.kernels);
}

Result<void> CudaLane::order_after_copies() {
  if (!std::exchange(copies_are_out_, false)) return {};
  LADING_TRY(record(all_copied_, streams_.copies));
  return order(streams_.kernels, all_copied_);
}

Result<void> CudaLane::copy(Address target, const std::byte* source, std::uint64_t size_bytes) {
  copies_are_out_ = true;
  return gpu_->call("copying to it", gpu_->driver().copy_to_device, target, static_cast<const void*>(source),
                    std::size_t{size_bytes}, streams_.copies);
}

Result<void> CudaLane::move(const Move& move) {
  if (is_empty(move)) return {};
  return keep(is_lent_ && !is_bouncing_ ? move_from_slot(move) : move_from_elsewhere(move));
}

Result<void> CudaLane::move_from_slot(const Move& move) {
  LADING_CHECK(move.source >= slot().data && move.source + reach_bytes(move) <= slot().data + stride_bytes(options_));
  if (move.from == move.to) {
    const Rows rows = rows_of(move);
    if (rows.loops.empty() && rows.run_bytes >= kDirectBytes) {
      return copy(address_of(move.target), move.source, rows.run_bytes);
    }
    if (rows.loops.size() == 1 && rows.run_bytes >= kRowBytes) {
      const ByteLoop& loop = rows.loops.front();
      const bool fits = loop.source_stride_bytes >= rows.run_bytes && loop.target_stride_bytes >= rows.run_bytes &&
                        std::max(loop.source_stride_bytes, loop.target_stride_bytes) < kMaxPitchBytes;
      if (fits && rows.run_bytes * loop.count >= kDirectBytes) {
        RowCopy job;
        job.source_host = move.source;
        job.source_pitch_bytes = loop.source_stride_bytes;
        job.target_device = address_of(move.target);
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

// Values of the caller's stand in memory that is not pinned: they take the way of file bytes, through slots. Many short
// runs share one.
Result<void> CudaLane::move_from_elsewhere(const Move& move) {
  LADING_CHECK(move.loops.empty());
  // Eight elements of a packed dtype end at a byte.
  const std::uint64_t at_once = std::max<std::uint64_t>(8, options_.slot_bytes * 8 / bits(move.from) / 8 * 8);
  for (std::uint64_t done = 0; done < move.run_elems; done += at_once) {
    const std::uint64_t elems = std::min(at_once, move.run_elems - done);
    const std::uint64_t size_bytes = bytes_of_elems(elems, move.from);
    if (is_bouncing_ && bounced_bytes_ + size_bytes > options_.slot_bytes) LADING_TRY(end_bounce());
    if (!is_bouncing_) {
      LADING_TRY(acquire_slot());
      is_bouncing_ = true;
      bounced_bytes_ = 0;
    }
    Move part = move;
    part.source = slot().data + bounced_bytes_;
    part.target = move.target + bytes_of_elems(done, move.to);
    part.run_elems = elems;
    std::memcpy(slot().data + bounced_bytes_, move.source + bytes_of_elems(done, move.from), size_bytes);
    bounced_bytes_ += (size_bytes + kBounceAlignmentBytes - 1) / kBounceAlignmentBytes * kBounceAlignmentBytes;
    LADING_TRY(move_from_slot(part));
  }
  return {};
}

Result<void> CudaLane::end_bounce() {
  if (!std::exchange(is_bouncing_, false)) return {};
  return release_slot();
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
  job.source = static_cast<std::uint64_t>(move.source - slot().data);
  job.target = address_of(move.target);
  job.run_elems = is_packed ? bytes_of_elems(move.run_elems, move.from) : move.run_elems;
  job.cast.from = static_cast<std::uint32_t>(is_packed ? DType::kU8 : move.from);
  job.cast.to = static_cast<std::uint32_t>(is_packed ? DType::kU8 : move.to);
  std::uint64_t elems = job.run_elems;
  for (const ByteLoop& loop : move.loops) {
    if (loop.count == 1) continue;
    job.loops[job.loop_count++] = {loop.count, loop.source_stride_bytes, loop.target_stride_bytes};
    elems *= loop.count;
  }
  const std::uint64_t widest = is_packed ? 1 : std::max(bits(move.from), bits(move.to)) / 8;
  const std::uint64_t at_once = kJobBytes / widest;
  for (std::uint64_t begin = 0; begin < elems; begin += at_once) {
    job.first_elem = begin;
    job.elems = std::min(at_once, elems - begin);
    moves_.push_back(job);
  }
  const std::uint64_t end_bytes = static_cast<std::uint64_t>(move.source - slot().data) + reach_bytes(move);
  const bool is_first = moves_begin_bytes_ == moves_end_bytes_;
  moves_begin_bytes_ =
      is_first ? end_bytes - reach_bytes(move) : std::min(moves_begin_bytes_, end_bytes - reach_bytes(move));
  moves_end_bytes_ = std::max(moves_end_bytes_, end_bytes);
}

// Where kernels find what is in the slot: in its twin, which is filled here; or, where the GPU has no memory for that,
// in the slot itself, over the bus.
Result<Address> CudaLane::source_of_kernels() {
  const Driver& driver = gpu_->driver();
  Slot& here = slot();
  if (here.twin == 0) {
    const Status status = gpu_->call_freely(driver.allocate, &here.twin, stride_bytes(options_));
    if (status == kOutOfMemory && here.is_pinned) {
      gpu_->add_note(
          fmt::format("{}: no device memory for staging is left; casts read host memory and are slower", gpu_->name()));
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
  drop_moves();
  return {};
}

void CudaLane::drop_moves() {
  moves_.clear();
  moves_begin_bytes_ = moves_end_bytes_ = 0;
}

Result<void> CudaLane::fill(const Fill& fill) {
  if (fill.elems == 0) return {};
  LADING_TRY(keep(end_bounce()));
  const bool is_packed = bits(fill.dtype) % 8 != 0;  // of packed dtypes there is only zero
  FillJob job = {};
  job.target = address_of(fill.target);
  job.elems = is_packed ? bytes_of_elems(fill.elems, fill.dtype) : fill.elems;
  job.bits = fill.bits;
  job.element_bytes = is_packed ? 1 : bits(fill.dtype) / 8;
  LADING_TRY(keep(order_after_copies()));
  void* parameters[] = {&job};
  return keep(launch(gpu_->fill_kernel(), blocks_for(job.elems), parameters));
}

Result<void> CudaLane::sample(const Sample& sample) {
  if (sample.elems == 0) return {};
  LADING_TRY(keep(end_bounce()));
  SampleJob job = {};
  job.target = address_of(sample.target);
  job.first_elem = sample.first_elem;
  job.elems = sample.elems;
  job.key = sample.key.value;
  job.dtype = static_cast<std::uint32_t>(sample.dtype);
  job.parameters = sample.parameters;
  LADING_TRY(keep(order_after_copies()));
  void* parameters[] = {&job};
  return keep(launch(gpu_->sample_kernel(), blocks_for(job.elems), parameters));
}

Result<void> CudaLane::digest(const DigestJob& job) {
  LADING_CHECK(sums_ != 0);
  // Cut where the tensor's blocks of keys end, so that kernels meet whole ones.
  std::uint64_t done = 0;
  while (done < job.size_bytes) {
    const std::uint64_t global = job.global_begin_bytes + done;
    const std::uint64_t size_bytes = std::min(job.size_bytes - done, kJobBytes - global % kJobBytes);
    ranges_.push_back({address_of(job.memory) + done, size_bytes, global, job.account});
    done += size_bytes;
  }
  ranges_bytes_ += job.size_bytes;
  if (ranges_bytes_ < kDigestFlushBytes && ranges_.size() < kMaxDigestJobs) return {};
  return keep(flush_digests());
}

Result<void> CudaLane::flush_digests() {
  if (ranges_.empty()) return {};
  LADING_TRY(prepare());
  LADING_TRY(end_bounce());
  LADING_TRY(order_after_copies());
  for (std::size_t begin = 0; begin < ranges_.size(); begin += kMaxDigestJobs) {
    const auto jobs =
        std::span<const DigestRange>(ranges_).subspan(begin, std::min(kMaxDigestJobs, ranges_.size() - begin));
    LADING_ASSIGN_OR_RETURN(Address list, pages_.put(std::as_bytes(jobs)));
    auto count = static_cast<std::uint32_t>(jobs.size());
    void* parameters[] = {&list, &count, &sums_};
    LADING_TRY(launch(gpu_->digest_kernel(), count, parameters));
  }
  ranges_.clear();
  ranges_bytes_ = 0;
  return {};
}

Result<void> CudaLane::launch(Function kernel, std::uint64_t blocks, void** parameters) {
  return gpu_->call("launching a kernel", gpu_->driver().launch, kernel, static_cast<unsigned>(blocks), 1U, 1U,
                    unsigned{kBlockThreads}, 1U, 1U, 0U, streams_.kernels, parameters, static_cast<void**>(nullptr));
}

Result<void> CudaLane::wait() {
  const Driver& driver = gpu_->driver();
  // For both, whatever the first answers: nothing may still be written when the caller has its memory back.
  Result<void> result;
  for (const Stream stream : {streams_.copies, streams_.kernels}) {
    if (stream == nullptr) continue;
    Result<void> waited = gpu_->call("waiting for its work", driver.synchronize_stream, stream);
    if (result) result = std::move(waited);
  }
  return result;
}

Result<void> CudaLane::fetch(const std::byte* memory, std::span<std::byte> out) {
  LADING_TRY(keep(end_bounce()));
  // Kernels write destinations too, and the copy below is on the other stream.
  LADING_TRY(keep(wait()));
  LADING_TRY(keep(gpu_->call("copying from it", gpu_->driver().copy_to_host, static_cast<void*>(out.data()),
                             address_of(memory), out.size(), streams_.copies)));
  return keep(wait());
}

Result<void> CudaLane::finish() {
  Result<void> flushed;
  if (!has_failed_) flushed = keep(end_bounce());
  if (!has_failed_) flushed = keep(flush_digests());
  is_lent_ = false;
  is_bouncing_ = false;
  drop_moves();
  Result<void> done = wait();
  for (Slot& slot : slots_) slot.is_busy = slot.twin_is_read = false;
  return flushed ? done : flushed;
}

}  // namespace lading::device::cuda
