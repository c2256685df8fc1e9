#include "device/cuda/job_pages.h"

#include <cstring>

namespace lading::device::cuda {
namespace {

constexpr std::size_t kAlignment = 16;

}  // namespace

JobPages::~JobPages() {
  if (address_ != 0 && !is_mapped_) gpu_->call_freely(gpu_->driver().free, address_);
  for (const Page& page : pages_) {
    if (page.event != nullptr) gpu_->call_freely(gpu_->driver().destroy_event, page.event);
  }
}

Result<void> JobPages::open(std::span<std::byte> memory, Address mapped, Stream stream) {
  stream_ = stream;
  LADING_CHECK(memory.size() == kSizeBytes);
  const Driver& driver = gpu_->driver();
  for (Page& page : pages_) {
    if (page.event != nullptr) continue;
    LADING_TRY(
        gpu_->call("creating an event", driver.create_event, &page.event, kEventBlockingSync | kEventWithoutTiming));
  }
  memory_ = memory;
  is_mapped_ = mapped != 0;
  address_ = mapped;
  if (is_mapped_) return {};
  return gpu_->call("allocating memory for jobs", driver.allocate, &address_, kSizeBytes);
}

Result<void> JobPages::turn() {
  const Driver& driver = gpu_->driver();
  LADING_TRY(gpu_->call("recording an event", driver.record_event, pages_[page_].event, stream_));
  pages_[page_].is_read = true;
  page_ = (page_ + 1) % kPages;
  used_bytes_ = 0;
  if (!pages_[page_].is_read) return {};
  pages_[page_].is_read = false;
  return gpu_->call("waiting for kernels", driver.synchronize_event, pages_[page_].event);
}

Result<Address> JobPages::put(std::span<const std::byte> jobs) {
  LADING_CHECK(is_open() && jobs.size() <= kPageBytes);
  if (used_bytes_ + jobs.size() > kPageBytes) LADING_TRY(turn());
  const std::size_t begin = page_ * kPageBytes + used_bytes_;
  std::byte* const here = memory_.data() + begin;
  std::memcpy(here, jobs.data(), jobs.size());
  used_bytes_ += (jobs.size() + kAlignment - 1) / kAlignment * kAlignment;
  const Address there = address_ + begin;
  if (!is_mapped_) {
    LADING_TRY(gpu_->call("copying jobs", gpu_->driver().copy_to_device, there, static_cast<const void*>(here),
                          jobs.size(), stream_));
  }
  return there;
}

}  // namespace lading::device::cuda
