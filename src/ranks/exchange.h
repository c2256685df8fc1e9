// What one rank has read goes to all that hold the same bytes.
//
// Every rank lists what it has a part in, in one order that all ranks share. Each keeps the first few transfers of its
// list under way; the first of all that is not over is then under way on both of its sides, so that no two ranks wait
// for each other.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lading/result.h"
#include "ranks/bulk.h"

namespace lading::ranks {

/// Memory that has the same content on all members when it is over: the owner's.
struct Handover {
  std::uint64_t owner = 0;
  std::shared_ptr<const std::vector<std::uint64_t>> members;  ///< ascending; this rank and the owner among them
  std::span<std::byte> memory;
};

struct ExchangeOptions {
  std::uint64_t rank = 0;
  /// Asked all the time; true: stop. Whoever knows that a rank is gone says so here: nothing else ends the waiting.
  std::function<bool()> is_cancelled;
  std::function<void(std::uint64_t bytes)> on_progress;  ///< sent and received so far
  Time patience = std::chrono::seconds(1);               ///< with transfers that are taken back
  std::uint64_t block_bytes = Bulk::kMostBytes;
};

struct ExchangeOutcome {
  Result<void> result;
  bool memory_is_free = true;  ///< false: some of it may still be written to, or read from, for as long as MPI runs
};

/// Returns when all handovers are done, or something is wrong.
[[nodiscard]] ExchangeOutcome exchange(Bulk& bulk, const std::vector<Handover>& handovers,
                                       const ExchangeOptions& options);

}  // namespace lading::ranks
