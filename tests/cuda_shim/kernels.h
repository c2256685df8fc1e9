// The kernels, run on the CPU: the same bodies, one pretended thread after the other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "cuda_shim/state.h"

namespace lading::cuda_shim {

struct KernelLaunch {
  std::string kernel;
  std::uint32_t blocks = 0;
  /// Values of the parameters, copied when the kernel was launched.
  std::array<std::byte, 256> parameters = {};
};

/// Bytes at a device address, for an access of so many; null where the GPU may not reach all of them.
using Reach = std::function<std::byte*(Address address, std::uint64_t size_bytes)>;

[[nodiscard]] bool is_kernel(std::string_view name);
/// Copies the values that cuLaunchKernel was given pointers to.
void copy_parameters(void** parameters, KernelLaunch& launch);
/// Device memory is what `reach` says; what lies elsewhere is an illegal address. Adds to `written_bytes`.
Outcome run_kernel(const KernelLaunch& launch, const Reach& reach, std::uint64_t& written_bytes);

}  // namespace lading::cuda_shim
