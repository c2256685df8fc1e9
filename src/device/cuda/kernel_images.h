// The kernels (kernel_jobs.h), compiled and built into the library. Constants; thread-safe.
#pragma once

#include <cstddef>
#include <span>

namespace lading::device::cuda {

struct KernelImage {
  unsigned sm;  ///< 90: machine code for compute capability 9.0 and its minor successors; 0: PTX, for all from 5.0 on
  std::span<const std::byte> bytes;  ///< ends with a NUL byte
};

/// PTX first. Empty if lading was built without kernels.
[[nodiscard]] std::span<const KernelImage> kernel_images();

}  // namespace lading::device::cuda
