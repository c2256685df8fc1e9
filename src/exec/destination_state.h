// DestinationState: what tasks ask about a destination while it is filled.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/element_bytes.h"
#include "base/loop_nest.h"
#include "exec/executor.h"
#include "layout/owned_runs.h"

namespace lading::exec {

struct DestinationState {
  const plan::Destination* destination = nullptr;
  const plan::Statement* statement = nullptr;
  const plan::Statement* root = nullptr;  ///< of a tie class: the member that has the source
  std::uint64_t rank = 0;
  std::uint32_t device = 0;  ///< into Load::devices
  DestinationMemory memory;
  layout::OwnedRuns runs;
  std::uint64_t expected_bytes = 0;   ///< of owned elements and of padding that the plan defines
  bool made_by_transfers = false;     ///< a constant tensor whose elements stand among the transfers
  bool digest_at_end = false;         ///< some task leaves gaps: bytes stand side by side only when all are written
                                      ///< (all that is received is digested then)
  HostValue value;                    ///< handed in by the caller
  bool is_written_early = false;      ///< a value that was deferred, and written when it came
  device::SampleParameters sampling;  ///< of kRandom
  std::atomic<std::uint64_t> written_bytes = 0;

  DestinationState(const plan::Plan& plan, const plan::RankPlan& rank_plan, const plan::Destination& of,
                   DestinationMemory at);

  [[nodiscard]] DType dtype() const { return statement->storage; }
  [[nodiscard]] std::byte* at_elem(std::uint64_t buffer_elem) const {
    return memory.data + bytes_of_elems(buffer_elem, dtype());
  }
  /// Says of an error which tensor on which rank it is about.
  [[nodiscard]] Error name(Error error) const;
};

/// In the order of destinations_of(). Tasks name a destination by its place here.
using DestinationStates = std::vector<std::unique_ptr<DestinationState>>;

/// Calls `act` with the place in the buffer of every run of a transfer, until it answers false.
template <class Act>
void for_each_run(const plan::Transfer& transfer, Act&& act) {
  if (transfer.elems() == 0) return;
  lading::for_each_run(transfer.loops,
                       [&](const RunOffsets& at) { return act(transfer.target_begin_bytes + at.target); });
}

/// Elements [begin, end) of a destination's buffer, small enough for a worker to do at once.
struct Tile {
  std::uint32_t destination = 0;
  std::uint64_t begin_elem = 0;
  std::uint64_t end_elem = 0;
};

/// All that the destination owns.
void add_tiles(const DestinationState& state, std::uint32_t destination, std::uint64_t tile_bytes,
               std::vector<Tile>& tiles);

}  // namespace lading::exec
