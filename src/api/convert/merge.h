// An adapter that a conversion adds to the weights: its files, and the arithmetic of a part.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lading/checkpoint.h"
#include "lading/result.h"
#include "plan/plan.h"
#include "planner/convert/adapter.h"
#include "source/checkpoint_source.h"

namespace lading {

struct OpenedAdapter {
  source::CheckpointSource source;
  planner::AdapterConfig config;
};

/// Headers and adapter_config.json.
Result<OpenedAdapter, Errors> open_adapter(const CheckpointRef& adapter);

/// Adds the adapter to the weights of the plan's only rank. `memory` is that of its destinations, in order, which are
/// loaded. Returns how many elements of merged weights the rank has. An error: a factor is not on the rank.
Result<std::uint64_t> merge_part(const plan::Plan& load, const std::vector<std::span<std::byte>>& memory,
                                 const std::vector<planner::Merge>& merges);

}  // namespace lading
