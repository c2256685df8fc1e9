// From facts about a machine to findings: what is good, what is slower, and what that costs.
//
// Pure. The speeds in the texts were measured on one machine each; docs/reference/doctor.md says which.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/gpus.h"
#include "io/machine.h"
#include "io/residency.h"
#include "lading/doctor.h"

namespace lading::doctor {

struct CheckpointFacts {
  std::uint64_t size_bytes = 0;
  std::optional<io::Residency> residency;  ///< of all its files; nothing: unknown
};

struct Facts {
  io::MachineFacts machine;
  io::PlaceFacts place;
  std::optional<CheckpointFacts> checkpoint;  ///< nothing: there is none at the path, or it is refused
  bool checkpoint_is_refused = false;
  device::GpuSurvey gpus;
};

/// In the order in which they are shown.
[[nodiscard]] std::vector<Finding> diagnose(const Facts& facts);

}  // namespace lading::doctor
