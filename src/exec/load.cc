#include "exec/load.h"

namespace lading::exec {

Result<void> Load::digest(const Lanes& lanes, const Tile& tile) const {
  if (options.verify == Verify::kOff) return {};
  const DestinationState& state = *states[tile.destination];
  Result<void> result;
  state.runs.for_each(tile.begin_elem, tile.end_elem, [&](const layout::OwnedRun& run) {
    if (!result) return;
    result = lanes[state.device]->digest({state.at_elem(run.buffer_begin), bytes_of_elems(run.elems, state.dtype()),
                                          bytes_of_elems(run.global_begin, state.dtype()), tile.destination});
  });
  return result;
}

void Load::add_tiles(std::uint32_t destination, std::vector<Tile>& tiles) const {
  const DestinationState& state = *states[destination];
  exec::add_tiles(state, destination, devices[state.device].lane_options.staging_buffer_bytes, tiles);
}

}  // namespace lading::exec
