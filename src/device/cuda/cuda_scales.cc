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
  for (const Chunk& chunk : chunks_) gpu_->call_freely(gpu_->driver().free, chunk.begin);
  if (taken_ != nullptr) gpu_->call_freely(gpu_->driver().destroy_event, taken_);
}

Result<void> CudaScales::take(const BlockScales& scales) {
  Taken taken;
  Entry& entry = taken.entry;
  entry.dims = scale_dims(scales);
  if (entry.dims.size() > kMaxScaleDims) {
    return fail(Error(Code::kDeviceFailed, fmt::format("{} cannot dequantize blocks of {} in a tensor of {}",
                                                       gpu_->name(), scales.block.text(), scales.shape.text()))
                    .wanted(fmt::format("at most {} dims that are cut into blocks", kMaxScaleDims))
                    .got(std::to_string(entry.dims.size()))
                    .try_this("Load the tensor on the CPU."));
  }
  const auto groups = std::as_bytes(std::span(scales.groups));
  const std::lock_guard lock(mutex_);
  LADING_ASSIGN_OR_RETURN(
      taken.chunk, make_room(padded(scales.values.size()) + padded(scales.zeros.size()) + padded(groups.size())));
  LADING_ASSIGN_OR_RETURN(entry.values, upload(scales.values, *taken.chunk));
  LADING_ASSIGN_OR_RETURN(entry.zeros, upload(scales.zeros, *taken.chunk));
  if (!groups.empty()) {
    LADING_ASSIGN_OR_RETURN(entry.groups, upload(groups, *taken.chunk));
  }
  ++taken.chunk->entries;
  taken_scales_[&scales] = std::move(taken);
  return gpu_->call("recording an event", gpu_->driver().record_event, taken_, Stream{nullptr});
}

void CudaScales::forget(const BlockScales& scales) {
  const std::lock_guard lock(mutex_);
  const auto found = taken_scales_.find(&scales);
  if (found == taken_scales_.end()) return;  // taking them failed
  Chunk& chunk = *found->second.chunk;
  if (--chunk.entries == 0) chunk.used_bytes = 0;
  taken_scales_.erase(found);
}

const CudaScales::Entry& CudaScales::of(const BlockScales& scales) const {
  const std::lock_guard lock(mutex_);
  const auto found = taken_scales_.find(&scales);
  LADING_CHECK(found != taken_scales_.end());
  return found->second.entry;
}

Event CudaScales::taken() const {
  const std::lock_guard lock(mutex_);
  return taken_;
}

// There is room.
Result<Address> CudaScales::upload(std::span<const std::byte> bytes, Chunk& chunk) {
  const Address to = chunk.begin + chunk.used_bytes;
  if (bytes.empty()) return to;
  LADING_TRY(gpu_->call("copying scales", gpu_->driver().copy_to_device, to, static_cast<const void*>(bytes.data()),
                        bytes.size(), Stream{nullptr}));
  chunk.used_bytes += padded(bytes.size());
  return to;
}

Result<CudaScales::Chunk*> CudaScales::make_room(std::uint64_t size_bytes) {
  const Driver& driver = gpu_->driver();
  if (taken_ == nullptr) {
    LADING_TRY(gpu_->call("creating an event", driver.create_event, &taken_, kEventWithoutTiming));
  }
  const auto roomy = std::find_if(chunks_.begin(), chunks_.end(), [&](const Chunk& chunk) {
    return size_bytes <= chunk.size_bytes - chunk.used_bytes;
  });
  if (roomy != chunks_.end()) return &*roomy;
  std::uint64_t chunk_bytes = std::max(size_bytes, kChunkBytes);
  Address begin = 0;
  Status status = gpu_->call_freely(driver.allocate, &begin, std::size_t{chunk_bytes});
  if (status == kOutOfMemory) {
    chunk_bytes = size_bytes;
    status = gpu_->call_freely(driver.allocate, &begin, std::size_t{chunk_bytes});
  }
  if (status == kOutOfMemory) return fail(gpu_->short_of(size_bytes, 0));
  LADING_TRY(gpu_->judge("allocating memory for scales", status));
  chunks_.push_back({begin, chunk_bytes, 0, 0});
  return &chunks_.back();
}

}  // namespace lading::device::cuda
