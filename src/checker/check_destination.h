// One destination: that its transfers write what the statement demands, each byte once, and nothing else.
#pragma once

#include <cstdint>
#include <vector>

#include "checker/check_geometry.h"
#include "checker/check_offers.h"
#include "checker/plan_types.h"
#include "checker/trace.h"
#include "lading/result.h"

namespace lading::checker {

struct DestinationQuestion {
  const Plan& plan;
  const Destination& destination;
  const Share& share;
  const Statement& root;                 ///< the statement that has the source: of a tie class, its root
  const Trace& trace;                    ///< of the root, if it is kFile or kFill
  const std::vector<Trace>& must_equal;  ///< of the root
};

/// How many bytes were proved to come from the right place. `scratch` is only kept to save allocations.
Result<std::uint64_t> check_transfers(const DestinationQuestion& question, Offers& scratch);

/// That the owned elements are compared with every key that must be equal, each element once and with its own (R50).
Result<void> check_comparisons(const DestinationQuestion& question, Offers& scratch);

}  // namespace lading::checker
