#include "device/cuda/cuda_lane.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace lading::device::cuda {
namespace {

// Whole pages are pinned.
constexpr std::size_t kPinnedPageBytes = kStagingAlignmentBytes;

}  // namespace

std::size_t CudaLane::stride_bytes(const LaneOptions& options) {
  return (options.staging_buffer_bytes + kPinnedPageBytes - 1) / kPinnedPageBytes * kPinnedPageBytes +
         kStagingAlignmentBytes;
}

std::size_t CudaLane::size_bytes(const LaneOptions& options) {
  return options.staging_buffers * stride_bytes(options) + JobPages::kSizeBytes;
}

Result<std::unique_ptr<Lane>> CudaLane::open(std::shared_ptr<Gpu> gpu, const LaneOptions& options, Address sums,
                                             const CudaScales& scales) {
  std::unique_ptr<CudaLane> lane(new CudaLane(std::move(gpu), options, sums, scales));
  LADING_TRY(lane->open_streams());
  return std::unique_ptr<Lane>(std::move(lane));
}

CudaLane::CudaLane(std::shared_ptr<Gpu> gpu, const LaneOptions& options, Address sums, const CudaScales& scales)
    : gpu_(std::move(gpu)),
      options_(options),
      sums_(sums),
      scales_(scales),
      pages_(gpu_),
      buffers_(options.staging_buffers),
      buffers_in_use_(options.staging_buffers) {}

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
  for (StagingBuffer& buffer : buffers_) {
    LADING_TRY(make_event(buffer.copied));
    LADING_TRY(make_event(buffer.distributed));
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
  for (std::size_t i = 0; i < memory.size(); i += kPinnedPageBytes) memory[i] = std::byte{0};
  for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].data = memory.data() + i * stride_bytes(options_);
  const Status status = pin(memory.data(), memory.size());
  if (gpu_->is_lost()) return gpu_->judge("pinning memory", status);
  Address mapped = 0;
  if (status == kSuccess) {
    is_pinned_ = true;
    for (StagingBuffer& buffer : buffers_) buffer.is_pinned = true;
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

// Buffer by buffer, until one is refused: the ring is smaller then. Where none can be pinned, the driver copies through
// memory of its own, and one buffer is as good as two.
Result<void> CudaLane::pin_what_can_be(Status refusal) {
  gpu_->add_note(
      fmt::format("{}: the staging buffers are smaller, because host memory could not be pinned ({}); loading is "
                  "slower (raise the memlock limit)",
                  gpu_->name(), gpu_->driver().describe(refusal)));
  for (StagingBuffer& buffer : buffers_) {
    const Status status = pin(buffer.data, stride_bytes(options_));
    if (gpu_->is_lost()) return gpu_->judge("pinning memory", status);
    buffer.is_pinned = status == kSuccess;
    if (!buffer.is_pinned) break;
  }
  const auto pinned = static_cast<std::size_t>(
      std::count_if(buffers_.begin(), buffers_.end(), [](const StagingBuffer& buffer) { return buffer.is_pinned; }));
  buffers_in_use_ = std::max<std::size_t>(1, pinned);
  return {};
}

CudaLane::~CudaLane() {
  const Driver& driver = gpu_->driver();
  const bool is_idle = wait().has_value();
  for (const StagingBuffer& buffer : buffers_) {
    if (buffer.is_pinned && !is_pinned_) gpu_->call_freely(driver.unregister_host, static_cast<void*>(buffer.data));
    if (buffer.copied != nullptr) gpu_->call_freely(driver.destroy_event, buffer.copied);
    if (buffer.distributed != nullptr) gpu_->call_freely(driver.destroy_event, buffer.distributed);
    if (buffer.twin != 0) gpu_->call_freely(driver.free, buffer.twin);
  }
  if (is_pinned_) gpu_->call_freely(driver.unregister_host, static_cast<void*>(slab_.bytes().data()));
  if (all_copied_ != nullptr) gpu_->call_freely(driver.destroy_event, all_copied_);
  for (const Stream stream : {streams_.copies, streams_.kernels}) {
    if (stream != nullptr) gpu_->call_freely(driver.destroy_stream, stream);
  }
  // One that does not say that it is done may still read: then the buffers stay where they are.
  if (!is_idle || gpu_->is_lost()) slab_.leak();
}

Result<void> CudaLane::keep(Result<void> result) {
  if (!result) has_failed_ = true;
  return result;
}

// How events order the host and the two streams (job pages have events of their own):
//   the host reads into a buffer      after `copied`        the GPU has read the buffer
//   kernels move out of a twin        after `copied`        the twin is filled
//   a copy fills a twin again         after `distributed`   kernels have read the twin
//   kernels digest, fill or sample    after `all_copied_`   the copies that are out have arrived
Result<void> CudaLane::wait_for(StagingBuffer& buffer) {
  if (!buffer.is_busy) return {};
  buffer.is_busy = false;
  return gpu_->call("waiting for a copy", gpu_->driver().synchronize_event, buffer.copied);
}

Result<std::span<std::byte>> CudaLane::acquire_staging_buffer() {
  LADING_TRY(keep(end_bounce()));
  LADING_TRY(keep(prepare()));
  if (!is_lent_) {
    current_ = (current_ + 1) % buffers_in_use_;
    LADING_TRY(keep(wait_for(current_buffer())));
  }
  is_lent_ = true;
  drop_moves();
  return std::span(current_buffer().data, options_.staging_buffer_bytes + kStagingAlignmentBytes);
}

Result<void> CudaLane::release_staging_buffer() {
  is_lent_ = false;
  return keep(release());
}

Result<void> CudaLane::release() {
  Address source = 0;
  if (has_jobs()) {
    LADING_ASSIGN_OR_RETURN(source, source_of_kernels());
  }
  current_buffer().is_busy = true;
  LADING_TRY(record(current_buffer().copied, streams_.copies));
  if (!has_jobs()) return {};
  LADING_TRY(order(streams_.kernels, current_buffer().copied));
  LADING_TRY(launch_moves(source));
  if (current_buffer().twin != 0) {
    current_buffer().twin_is_read = true;
    return record(current_buffer().distributed, streams_.kernels);
  }
  // The kernels read the buffer itself, after all copies: `copied` now means that both are done.
  return record(current_buffer().copied, streams_.kernels);
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
                             device_address(memory), out.size(), streams_.copies)));
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
  for (StagingBuffer& buffer : buffers_) buffer.is_busy = buffer.twin_is_read = false;
  return flushed ? done : flushed;
}

}  // namespace lading::device::cuda
