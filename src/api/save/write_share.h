// The middle step of a save, for some of the ranks: write_save() and convert() have this in common.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exec/executor.h"
#include "lading/save.h"

namespace lading {

struct SaveShare {
  std::vector<std::uint32_t> ranks;                          ///< into SavePlan::ranks
  std::vector<std::vector<exec::DestinationMemory>> memory;  ///< by `ranks` and the destinations of the load
};

/// Writes what the plan gives these ranks, and leaves a note of it. `writing.memory` is not looked at. The plan is one
/// that plan_save() made.
Result<SaveShareReport, Errors> write_share(const SavePlanReport& plan, const SaveShare& share, const SavePlace& place,
                                            const std::string& temporary, const SaveWriting& writing);

}  // namespace lading
