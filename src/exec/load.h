// Load: what the stages of one load share.
#pragma once

#include "device/device.h"
#include "exec/crew.h"
#include "exec/devices.h"
#include "exec/executor.h"
#include "exec/work.h"
#include "io/choose.h"

namespace lading::exec {

struct Load {
  const Inputs& inputs;
  const Options& options;
  const std::vector<Target>& targets;
  const WorkList& works;
  const std::vector<LoadDevice>& devices;
  Crew& crew;
  io::Chooser& chooser;

  /// Counts bytes of a target as written.
  void add_written(Work& work, std::uint64_t bytes) const {
    work.written_bytes.fetch_add(bytes, std::memory_order_relaxed);
    crew.add_done(bytes);
  }
  /// Adds elements of a target's buffer to its digest, if digests are wanted.
  Result<void> digest(const Lanes& lanes, const Tile& tile) const;
  /// All that the target owns, cut into tiles for its device.
  void add_tiles(std::uint32_t target, std::vector<Tile>& tiles) const;
};

}  // namespace lading::exec
