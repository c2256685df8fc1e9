#include "api/load_memory.h"

#include <fmt/format.h>

#include <utility>

#include "base/checked.h"
#include "base/text.h"
#include "device/device.h"
#include "device/gpus.h"
#include "io/machine.h"

namespace lading {
namespace {

// What a device is asked for, and the destination that asks for most of it.
struct Demand {
  std::uint64_t bytes = 0;
  const DestinationInfo* largest = nullptr;
  std::uint64_t destinations = 0;
};

Error too_little(const std::string& device, std::uint64_t needed_bytes, const AvailableMemory& available) {
  const bool is_host = device == "cpu";
  return Error(is_host ? Code::kOutOfMemory : Code::kDeviceMemory,
               fmt::format("the load needs more memory of {} than is free", is_host ? "the host" : device))
      .by_rule("R64")
      .wanted(
          fmt::format("at most {} bytes ({}): {}", *available.bytes, human_bytes(*available.bytes), available.limit))
      .got(fmt::format("{} bytes ({})", needed_bytes, human_bytes(needed_bytes)))
      .try_this(
          "Free memory, let each process load fewer ranks, or choose a layout whose parts and padding are smaller");
}

}  // namespace

Result<AvailableMemory> available_memory(const std::string& device) {
  if (device == "cpu") {
    io::FreeMemory found = io::look_at_free_memory();
    return AvailableMemory{found.bytes, std::move(found.limit)};
  }
  LADING_TRY(device::open_device(device));
  for (const device::GpuInfo& gpu : device::survey_gpus().gpus) {
    if (fmt::format("cuda:{}", gpu.index) != device) continue;
    if (gpu.free_bytes == 0) break;  // the driver does not say
    return AvailableMemory{gpu.free_bytes, fmt::format("the free memory of {}", device)};
  }
  return AvailableMemory{};
}

Result<void> check_memory(const std::string& device, std::uint64_t needed_bytes) {
  LADING_ASSIGN_OR_RETURN(const AvailableMemory available, available_memory(device));
  if (!available.bytes || needed_bytes <= *available.bytes) return {};
  return fail(too_little(device, needed_bytes, available));
}

Result<void> OwnMemory::allocate(const std::vector<DestinationInfo>& destinations, std::uint64_t staging_bytes) {
  std::map<std::string, Demand> demands;  // by device
  for (const DestinationInfo& d : destinations) {
    Demand& demand = demands[d.device];
    ++demand.destinations;
    if (demand.largest == nullptr || d.size_bytes > demand.largest->size_bytes) demand.largest = &d;
    if (!d.unit.empty() && !units_.emplace(key(d), demand.bytes).second) {
      begins_.push_back(units_.at(key(d)));
      continue;
    }
    begins_.push_back(demand.bytes);
    const auto end = checked_add(demand.bytes, d.size_bytes);
    const auto aligned = end ? checked_add(*end, kAlignment - 1) : std::nullopt;
    if (!aligned) {
      return fail(Error(Code::kOutOfMemory, "the destinations are more than 2^64 bytes").of_tensor(d.name));
    }
    demand.bytes = *aligned / kAlignment * kAlignment;
  }
  // Other devices say by themselves what they lack.
  if (const auto host = demands.find("cpu"); host != demands.end()) {
    const Demand& demand = host->second;
    auto checked = check_memory("cpu", checked_add(demand.bytes, staging_bytes).value_or(demand.bytes));
    if (!checked) {
      Error error = std::move(checked).error();
      error.found += fmt::format(" for {} tensors, of which this one has {}", demand.destinations,
                                 human_bytes(demand.largest->size_bytes));
      return fail(std::move(error).of_tensor(demand.largest->name).on_rank(static_cast<int>(demand.largest->rank)));
    }
  }
  for (const auto& [name, demand] : demands) {
    LADING_ASSIGN_OR_RETURN(const auto device, device::open_device(name));
    LADING_ASSIGN_OR_RETURN(stretches_[name], device->allocate(demand.bytes));
  }
  return {};
}

}  // namespace lading
