#include "device/cuda/cuda_scales.h"

#include <fmt/format.h>

#include <algorithm>

#include "device/cuda/scale_dims.h"

namespace lading::device::cuda {
namespace {

// What the driver takes from the GPU at least.
constexpr std::uint64_t kChunkBytes = std::uint64_t{2} << 20;
// Of any dtype of scales.
constexpr std::uint64_t kAlignmentBytes = 8;

std::uint64_t padded(std::uint64_t size_bytes) {
  return (size_bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

}  // namespace

CudaScales::~CudaScales() {
  for (const Address chunk : chunks_) gpu_->call_freely(gpu_->driver().free, chunk);
  if (taken_ != nullptr) gpu_->call_freely(gpu_->driver().destroy_event, taken_);
}

Result<void> CudaScales::take(const BlockScales& scales) {
  Entry entry;
  entry.dims = scale_dims(scales);
  if (entry.dims.size() > kMaxScaleDims) {
    return fail(Error(Code::kDeviceFailed, fmt::format("{} cannot dequantize blocks of {} in a tensor of {}",
                                                       gpu_->name(), scales.block.text(), scales.shape.text()))
                    .wanted(fmt::format("at most {} dims that are cut into blocks", kMaxScaleDims))
                    .got(std::to_string(entry.dims.size()))
                    .try_this("Load the tensor on the CPU."));
  }
  const auto groups = std::as_bytes(std::span(scales.groups));
  LADING_TRY(make_room(padded(scales.values.size()) + padded(scales.zeros.size()) + padded(groups.size())));
  LADING_ASSIGN_OR_RETURN(entry.values, upload(scales.values));
  LADING_ASSIGN_OR_RETURN(entry.zeros, upload(scales.zeros));
  if (!groups.empty()) {
    LADING_ASSIGN_OR_RETURN(entry.groups, upload(groups));
  }
  entries_[&scales] = std::move(entry);
  return gpu_->call("recording an event", gpu_->driver().record_event, taken_, Stream{nullptr});
}

// There is room.
Result<Address> CudaScales::upload(std::span<const std::byte> bytes) {
  const Address to = free_;
  if (bytes.empty()) return to;
  LADING_TRY(gpu_->call("copying scales", gpu_->driver().copy_to_device, to, static_cast<const void*>(bytes.data()),
                        bytes.size(), Stream{nullptr}));
  free_ += padded(bytes.size());
  free_bytes_ -= padded(bytes.size());
  return to;
}

Result<void> CudaScales::make_room(std::uint64_t size_bytes) {
  const Driver& driver = gpu_->driver();
  if (taken_ == nullptr) {
    LADING_TRY(gpu_->call("creating an event", driver.create_event, &taken_, kEventWithoutTiming));
  }
  if (size_bytes <= free_bytes_) return {};
  std::uint64_t chunk_bytes = std::max(size_bytes, kChunkBytes);
  Address chunk = 0;
  Status status = gpu_->call_freely(driver.allocate, &chunk, std::size_t{chunk_bytes});
  if (status == kOutOfMemory) {
    chunk_bytes = size_bytes;
    status = gpu_->call_freely(driver.allocate, &chunk, std::size_t{chunk_bytes});
  }
  if (status == kOutOfMemory) return fail(gpu_->short_of(size_bytes, 0));
  LADING_TRY(gpu_->judge("allocating memory for scales", status));
  chunks_.push_back(chunk);
  free_ = chunk;
  free_bytes_ = chunk_bytes;
  return {};
}

}  // namespace lading::device::cuda
