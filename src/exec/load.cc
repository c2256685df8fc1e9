#include "exec/load.h"

namespace lading::exec {

Result<void> Load::digest(const Lanes& lanes, const Tile& tile) const {
  if (options.verify == Verify::kOff) return {};
  const Work& work = *works[tile.target];
  Result<void> result;
  work.runs.for_each(tile.begin_elem, tile.end_elem, [&](const layout::OwnedRun& run) {
    if (!result) return;
    result = lanes[work.device]->digest({work.at_elem(run.buffer_begin), bytes_of_elems(run.elems, work.dtype()),
                                         bytes_of_elems(run.global_begin, work.dtype()), tile.target});
  });
  return result;
}

void Load::add_tiles(std::uint32_t target, std::vector<Tile>& tiles) const {
  const Work& work = *works[target];
  exec::add_tiles(work, target, devices[work.device].lane_options.slot_bytes, tiles);
}

}  // namespace lading::exec
