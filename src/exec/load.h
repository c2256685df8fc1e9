// Load: what the stages of one load share.
#pragma once

#include "device/device.h"
#include "exec/crew.h"
#include "exec/destination_state.h"
#include "exec/devices.h"
#include "exec/executor.h"
#include "exec/scales.h"
#include "io/choose.h"

namespace lading::exec {

struct Load {
  const Inputs& inputs;
  const Options& options;
  const DestinationStates& states;
  const std::vector<LoadDevice>& devices;
  Crew& crew;
  io::Chooser& chooser;
  Scales& scales;

  /// Counts bytes of a destination as written.
  void add_written(DestinationState& state, std::uint64_t bytes) const {
    state.written_bytes.fetch_add(bytes, std::memory_order_relaxed);
    crew.add_done(bytes);
  }
  /// Adds elements of a destination's buffer to its digest, if digests are wanted.
  Result<void> digest(const Lanes& lanes, const Tile& tile) const;
  /// All that the destination owns, cut into tiles for its device.
  void add_tiles(std::uint32_t destination, std::vector<Tile>& tiles) const;
};

}  // namespace lading::exec
