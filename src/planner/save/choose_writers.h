// Who writes what of a new checkpoint, from the plan of a load of it (plan/save/save_plan.h). Pure, deterministic.
#pragma once

#include <vector>

#include "lading/result.h"
#include "plan/save/save_plan.h"

namespace lading::planner {

/// By `load.ranks`, which are all ranks of the mesh. Bytes that several ranks hold have one writer, so that all ranks
/// write about as much as far as that can be chosen. Bytes that no rank holds are an error that names the key; so are
/// quantized keys, which a load only reads.
Result<std::vector<plan::RankWrites>, Errors> choose_writers(const plan::Plan& load);

}  // namespace lading::planner
