// JobPages: the pinned pages in which kernels find their jobs.
//
// A lane writes jobs one behind the other; a page is written again only when the kernels that read it are done. Where
// the memory cannot be pinned, copies of the pages on the GPU are read instead. For one thread.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "device/cuda/cuda_gpu.h"

namespace lading::device::cuda {

class JobPages {
 public:
  static constexpr std::size_t kPages = 4;
  static constexpr std::size_t kPageBytes = std::size_t{128} << 10;
  static constexpr std::size_t kSizeBytes = kPages * kPageBytes;

  explicit JobPages(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  ~JobPages();
  JobPages(const JobPages&) = delete;
  JobPages& operator=(const JobPages&) = delete;

  /// Where jobs are written: kSizeBytes of host memory that outlive this, and where the GPU sees them; 0: it cannot.
  Result<void> open(std::span<std::byte> memory, Address mapped, Stream stream);
  [[nodiscard]] bool is_open() const { return address_ != 0; }

  /// Where the GPU finds the jobs, for kernels that are launched on the stream before the next put().
  Result<Address> put(std::span<const std::byte> jobs);

 private:
  struct Page {
    Event event = nullptr;
    bool is_read = false;  ///< kernels may still read it
  };

  Result<void> turn();

  std::shared_ptr<Gpu> gpu_;
  Stream stream_ = nullptr;
  std::span<std::byte> memory_;
  Address address_ = 0;  ///< of the first page, for the GPU
  bool is_mapped_ = false;
  std::array<Page, kPages> pages_;
  std::size_t page_ = 0;
  std::size_t used_bytes_ = 0;
};

}  // namespace lading::device::cuda
