#include "exec/load.h"

namespace lading::exec {

Result<void> Load::digest(device::Lane& lane, const Tile& tile) const {
  if (options.verify == Verify::kOff) return {};
  const Work& work = *works[tile.target];
  Result<void> result;
  work.runs.for_each(tile.begin_elem, tile.end_elem, [&](const layout::OwnedRun& run) {
    if (!result) return;
    result = lane.digest({work.at_elem(run.buffer_begin), bytes_of_elems(run.elems, work.dtype()),
                          bytes_of_elems(run.global_begin, work.dtype()), tile.target});
  });
  return result;
}

}  // namespace lading::exec
