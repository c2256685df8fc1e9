// One load by several processes, each of which fills its own rank: they agree on the plan before bytes move, and are
// done together or not at all. What several ranks hold alike can be read by one of them for all
// (docs/guides/exchange.md). Wiring between ranks::Coordinator, ranks::exchange() and load_plan().
#pragma once

#include <string>

#include "lading/mpi.h"
#include "ranks/bulk.h"
#include "ranks/coordinator.h"

namespace lading {

struct GroupRequest : GroupLoadRequest {
  std::string node;        ///< that this rank is on
  ranks::Options options;  ///< deadlines
};

/// materialize() of one rank among others, which all call this. The layout has as many ranks as the channel.
Result<GroupReport, GroupFailure> load_in_group(ranks::Channel& channel, ranks::Bulk& bulk, GroupRequest request);

}  // namespace lading
