#include "exec/destination_state.h"

#include <algorithm>

namespace lading::exec {
namespace {

// How much of a constant lies among the owned elements (padded rows of a vocabulary are part of the tensor, and a
// constant may run on into padding).
std::uint64_t owned_bytes_of(const DestinationState& state, const plan::Transfer& fill) {
  const std::uint64_t owned_begin = bytes_of_elems(state.runs.buffer_begin(), state.dtype());
  const std::uint64_t owned_end = owned_begin + bytes_of_elems(state.runs.owned_elems(), state.dtype());
  const std::uint64_t run_bytes = bytes_of_elems(fill.run_elems, state.dtype());
  std::uint64_t bytes = 0;
  for_each_run(fill, [&](std::uint64_t begin) {
    const std::uint64_t from = std::max(begin, owned_begin);
    const std::uint64_t to = std::min(begin + run_bytes, owned_end);
    if (from < to) bytes += to - from;
    return true;
  });
  return bytes;
}

}  // namespace

DestinationState::DestinationState(const plan::Plan& plan, const plan::RankPlan& rank_plan, const plan::Destination& of,
                                   DestinationMemory at)
    : destination(&of),
      statement(&plan.statements[of.statement]),
      root(&plan.statements[of.root]),
      rank(rank_plan.rank),
      memory(at),
      runs(rank_plan.regions[of.region], statement->shape) {
  if (root->provenance == Provenance::kKept) return;
  expected_bytes = bytes_of_elems(runs.owned_elems(), dtype());
  for (const plan::Transfer& transfer : of.transfers) {
    if (!transfer.is_fill()) continue;
    const std::uint64_t owned_bytes = owned_bytes_of(*this, transfer);
    expected_bytes += bytes_of_elems(transfer.elems(), dtype()) - owned_bytes;
    if (owned_bytes > 0 && root->provenance == Provenance::kFill) made_by_transfers = true;
  }
}

Error DestinationState::name(Error error) const {
  error.tensor = statement->name;
  error.rank = static_cast<int>(rank);
  return error;
}

void add_tiles(const DestinationState& state, std::uint32_t destination, std::uint64_t tile_bytes,
               std::vector<Tile>& tiles) {
  // Eight elements always fill whole bytes, so cuts fall between bytes.
  const std::uint64_t at_once = std::max<std::uint64_t>(8, tile_bytes / bits(state.dtype()) * 8);
  const std::uint64_t begin = state.runs.buffer_begin();
  const std::uint64_t end = begin + state.runs.owned_elems();
  for (std::uint64_t i = begin; i < end; i += at_once) tiles.push_back({destination, i, std::min(end, i + at_once)});
}

}  // namespace lading::exec
