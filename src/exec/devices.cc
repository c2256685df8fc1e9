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
constexpr std::uint64_t kHostSlotBytes = std::uint64_t{1} << 20;
// A bus wants larger pieces, and one on its way while the next is read (bench/results).
constexpr std::uint64_t kDeviceSlotBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kMostSlotBytes = std::uint64_t{64} << 20;
constexpr std::size_t kDeviceSlots = 2;
constexpr std::uint64_t kTasksPerThread = 64;

}  // namespace

std::vector<LoadDevice> open_devices(const WorkList& works, Crew& crew) {
  std::vector<LoadDevice> devices;
  std::map<std::string_view, std::uint32_t> indices;
  for (const auto& work : works) {
    const auto [known, is_new] = indices.emplace(work->destination->device, devices.size());
    work->device = known->second;
    if (!is_new) continue;
    LoadDevice& opened = devices.emplace_back();
    if (auto device = device::open_device(work->destination->device)) {
      opened.device = *std::move(device);
    } else {
      crew.add_error(work->name(std::move(device).error()));
    }
  }
  for (const auto& work : works) {
    const device::Device* const device = devices[work->device].device.get();
    if (device == nullptr || work->memory.data == nullptr) continue;
    if (auto checked = device->check({work->memory.data, work->memory.size_bytes}); !checked) {
      crew.add_error(work->name(std::move(checked).error()));
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
  const std::uint32_t processors = usable_processors();
  const std::uint32_t wanted = thread_count(options.threads, processors);
  // Where there is little memory, many threads with smaller slots are faster than few with large ones; and where there
  // is little to read, large slots would cost more to pin than they save.
  std::uint64_t read_bytes = 0;
  for (const plan::RankPlan& rank : plan.ranks) read_bytes += rank.read_bytes;
  const std::uint64_t share_bytes =
      std::min(staging_bytes / wanted / std::max<std::size_t>(1, devices.size()) / kDeviceSlots,
               read_bytes / wanted / kTasksPerThread);
  const std::uint64_t device_slot_bytes = std::clamp(std::bit_floor(share_bytes), kHostSlotBytes, kDeviceSlotBytes);
  for (LoadDevice& device : devices) {
    const bool is_host = device.device->is_host();
    device.lane_options.slot_bytes = is_host ? kHostSlotBytes : device_slot_bytes;
    if (options.slot_bytes > 0) device.lane_options.slot_bytes = std::min(options.slot_bytes, kMostSlotBytes);
    device.lane_options.slots = is_host ? 1 : kDeviceSlots;
    device.lane_options.wait = wanted <= processors ? device::Wait::kSpin : device::Wait::kSleep;
  }
  const std::uint64_t threads = staging_bytes / std::max<std::uint64_t>(1, lane_bytes(devices));
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(threads, 1, wanted));
}

}  // namespace lading::exec
