// From what a user says of devices to the device of each rank. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "lading/layout.h"
#include "lading/result.h"

namespace lading::layout {

struct DeviceQuestion {
  DeviceChoice choice;
  std::uint64_t rank_count = 1;  ///< of the mesh
  bool is_for_one_rank = true;   ///< of all that are asked for
};

struct ChosenDevices {
  DeviceMap devices;
  std::string note;  ///< which rank has which; "" if that goes without saying
};

/// A GPU without an index is counted by rank and node (R34). Refuses one index for several ranks.
Result<ChosenDevices> choose_devices(const DeviceQuestion& question);

}  // namespace lading::layout
