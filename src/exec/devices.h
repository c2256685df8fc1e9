// The devices of a load: opened before anything is written, with lanes that fit the plan's memory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"
#include "exec/destination_state.h"
#include "exec/executor.h"

namespace lading::exec {

class Crew;

/// A device, and how lanes of it are opened.
struct LoadDevice {
  std::unique_ptr<device::Device> device;
  device::LaneOptions lane_options;
};

/// The devices of the destinations, each once; the destinations learn their index. What cannot be opened, and memory
/// that is not where it should be (R34), are errors of the crew.
[[nodiscard]] std::vector<LoadDevice> open_devices(const DestinationStates& states, Crew& crew);

/// Sizes the lanes, and says for how many threads the plan allows them (R64).
[[nodiscard]] std::uint32_t fit_lanes(const plan::Plan& plan, const Options& options, std::vector<LoadDevice>& devices);

/// Host memory that the lanes of one thread take.
[[nodiscard]] std::uint64_t lane_bytes(const std::vector<LoadDevice>& devices);

}  // namespace lading::exec
