#include "exec/devices.h"

#include <algorithm>
#include <bit>
#include <map>
#include <string_view>

#include "exec/crew.h"
#include "exec/thread_count.h"

namespace lading::exec {
namespace {

// Host memory is written by the reading itself, and what is cast should still be in the CPU's cache.
constexpr std::uint64_t kHostBufferBytes = std::uint64_t{1} << 20;
// A bus wants larger pieces, and one on its way while the next is read (bench/results).
constexpr std::uint64_t kDeviceBufferBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kMostBufferBytes = std::uint64_t{64} << 20;
constexpr std::size_t kDeviceBuffers = 2;
constexpr std::uint64_t kTasksPerThread = 64;

}  // namespace

std::vector<LoadDevice> open_devices(const DestinationStates& states, Crew& crew) {
  std::vector<LoadDevice> devices;
  std::map<std::string_view, std::uint32_t> indices;
  for (const auto& state : states) {
    const auto [known, is_new] = indices.emplace(state->destination->device, devices.size());
    state->device = known->second;
    if (!is_new) continue;
    LoadDevice& opened = devices.emplace_back();
    if (auto device = device::open_device(state->destination->device)) {
      opened.device = *std::move(device);
    } else {
      crew.add_error(state->name(std::move(device).error()));
    }
  }
  for (const auto& state : states) {
    const device::Device* const device = devices[state->device].device.get();
    if (device == nullptr || state->memory.data == nullptr) continue;
    if (auto checked = device->check({state->memory.data, state->memory.size_bytes}); !checked) {
      crew.add_error(state->name(std::move(checked).error()));
    }
  }
  return devices;
}

std::uint64_t lane_bytes(const std::vector<LoadDevice>& devices) {
  std::uint64_t bytes = 0;
  for (const LoadDevice& device : devices) bytes += device.device->lane_bytes(device.lane_options);
  return bytes;
}

std::uint32_t fit_lanes(const plan::Plan& plan, const Options& options, std::vector<LoadDevice>& devices) {
  std::uint64_t staging_bytes = 0;
  for (const plan::RankPlan& rank : plan.ranks) staging_bytes += rank.staging_bytes;
  staging_bytes = std::min(staging_bytes, plan.budget_bytes);
  // Scales stay beside the lanes until the load ends.
  std::uint64_t scale_bytes = 0;
  for (const plan::RankPlan& rank : plan.ranks) scale_bytes += plan::scale_memory_bytes(plan, rank);
  staging_bytes -= std::min(staging_bytes, scale_bytes);
  const std::uint32_t processors = usable_processors();
  const std::uint32_t wanted = thread_count(options.threads, processors);
  // Where there is little memory, many threads with smaller buffers are faster than few with large ones; and where
  // there is little to read, large buffers would cost more to pin than they save.
  std::uint64_t read_bytes = 0;
  for (const plan::RankPlan& rank : plan.ranks) read_bytes += rank.read_bytes;
  const std::uint64_t share_bytes =
      std::min(staging_bytes / wanted / std::max<std::size_t>(1, devices.size()) / kDeviceBuffers,
               read_bytes / wanted / kTasksPerThread);
  const std::uint64_t device_buffer_bytes =
      std::clamp(std::bit_floor(share_bytes), kHostBufferBytes, kDeviceBufferBytes);
  for (LoadDevice& device : devices) {
    const bool is_host = device.device->is_host();
    device.lane_options.staging_buffer_bytes = is_host ? kHostBufferBytes : device_buffer_bytes;
    if (options.staging_buffer_bytes > 0)
      device.lane_options.staging_buffer_bytes = std::min(options.staging_buffer_bytes, kMostBufferBytes);
    device.lane_options.staging_buffers = is_host ? 1 : kDeviceBuffers;
    device.lane_options.wait = wanted <= processors ? device::Wait::kSpin : device::Wait::kSleep;
  }
  const std::uint64_t threads = staging_bytes / std::max<std::uint64_t>(1, lane_bytes(devices));
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(threads, 1, wanted));
}

}  // namespace lading::exec
