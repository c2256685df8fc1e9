#include "exec/available_memory.h"

#include <fmt/format.h>

#include <utility>

#include "base/text.h"
#include "device/device.h"
#include "device/gpus.h"
#include "io/machine.h"

namespace lading::exec {
namespace {

Error too_little(const std::string& device, std::uint64_t needed_bytes, const FreeMemory& available) {
  const bool is_host = device == "cpu";
  return Error(is_host ? Code::kOutOfMemory : Code::kDeviceMemory,
               fmt::format("the load needs more memory of {} than is free", is_host ? "the host" : device))
      .by_rule("R64")
      .wanted(
          fmt::format("at most {} bytes ({}): {}", *available.bytes, human_bytes(*available.bytes), available.limit))
      .got(fmt::format("{} bytes ({})", needed_bytes, human_bytes(needed_bytes)))
      .try_this("Free memory, let each process load fewer ranks, or choose a layout with smaller parts and padding.");
}

}  // namespace

Result<FreeMemory> available_memory(const std::string& device) {
  if (device == "cpu") {
    io::FreeMemory found = io::look_at_free_memory();
    return FreeMemory{found.bytes, std::move(found.limit)};
  }
  LADING_TRY(device::open_device(device));
  for (const device::GpuInfo& gpu : device::survey_gpus().gpus) {
    if (fmt::format("cuda:{}", gpu.index) != device) continue;
    if (gpu.free_bytes == 0) break;  // the driver does not say
    return FreeMemory{gpu.free_bytes, fmt::format("the free memory of {}", device)};
  }
  return FreeMemory{};
}

Result<void> check_memory(const std::string& device, std::uint64_t needed_bytes) {
  LADING_ASSIGN_OR_RETURN(const FreeMemory available, available_memory(device));
  if (!available.bytes || needed_bytes <= *available.bytes) return {};
  return fail(too_little(device, needed_bytes, available));
}

}  // namespace lading::exec
