// CudaScales: scales of quantized tensors in the memory of a GPU.
//
// Many tensors have few scales each, so they share allocations. What is forgotten makes room for others as soon as
// everything in the same allocation is. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "device/cuda/cuda_gpu.h"
#include "device/cuda/kernel_jobs.h"
#include "device/device.h"

namespace lading::device::cuda {

class CudaScales {
 public:
  struct Entry {
    Address values = 0;  ///< in their dtype
    Address zeros = 0;
    Address groups = 0;  ///< 0: there are none
    std::vector<DequantizeDim> dims;
  };

  explicit CudaScales(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  ~CudaScales();
  CudaScales(const CudaScales&) = delete;
  CudaScales& operator=(const CudaScales&) = delete;

  Result<void> take(const BlockScales& scales);

  /// Nothing on the GPU reads them any more.
  void forget(const BlockScales& scales);

  /// Of scales that were taken; `scales` is the same object. Valid until they are forgotten.
  [[nodiscard]] const Entry& of(const BlockScales& scales) const;
  /// Everything that was taken is there after it.
  [[nodiscard]] Event taken() const;

 private:
  struct Chunk {
    Address begin = 0;
    std::uint64_t size_bytes = 0;
    std::uint64_t used_bytes = 0;
    std::size_t entries = 0;
  };
  struct Taken {
    Entry entry;
    Chunk* chunk = nullptr;
  };

  Result<Chunk*> make_room(std::uint64_t size_bytes);
  Result<Address> upload(std::span<const std::byte> bytes, Chunk& chunk);

  std::shared_ptr<Gpu> gpu_;
  mutable std::mutex mutex_;
  std::map<const BlockScales*, Taken> taken_scales_;
  std::deque<Chunk> chunks_;
  Event taken_ = nullptr;
};

}  // namespace lading::device::cuda
