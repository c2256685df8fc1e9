// Built where no compiler for GPUs was found (cmake/cuda.cmake): there are no kernels.
#include "device/cuda/kernel_images.h"

namespace lading::device::cuda {

std::span<const KernelImage> kernel_images() { return {}; }

}  // namespace lading::device::cuda
