// CudaScales: scales of quantized tensors in the memory of a GPU.
//
// Many tensors have few scales each, so they share allocations. For one thread while it takes, afterwards for many that
// only look.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <utility>
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

  /// Of scales that were taken; `scales` is the same object.
  [[nodiscard]] const Entry& of(const BlockScales& scales) const {
    const auto found = entries_.find(&scales);
    LADING_CHECK(found != entries_.end());
    return found->second;
  }
  /// Everything that was taken is there after it.
  [[nodiscard]] Event taken() const { return taken_; }

 private:
  Result<void> make_room(std::uint64_t size_bytes);
  Result<Address> upload(std::span<const std::byte> bytes);

  std::shared_ptr<Gpu> gpu_;
  std::map<const BlockScales*, Entry> entries_;
  std::vector<Address> chunks_;
  Address free_ = 0;  ///< in the last chunk
  std::uint64_t free_bytes_ = 0;
  Event taken_ = nullptr;
};

}  // namespace lading::device::cuda
