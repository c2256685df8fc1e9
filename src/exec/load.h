// Load: what the stages of one load share.
#pragma once

#include "device/device.h"
#include "exec/crew.h"
#include "exec/executor.h"
#include "exec/work.h"
#include "io/choose.h"

namespace lading::exec {

struct Load {
  const Inputs& inputs;
  const Options& options;
  const std::vector<Target>& targets;
  const WorkList& works;
  Crew& crew;
  io::Chooser& chooser;

  /// Counts bytes of a target as written.
  void add_written(Work& work, std::uint64_t bytes) const {
    work.written_bytes.fetch_add(bytes, std::memory_order_relaxed);
    crew.add_done(bytes);
  }
  /// Adds elements of a target's buffer to its digest, if digests are wanted.
  Result<void> digest(device::Lane& lane, const Tile& tile) const;
};

}  // namespace lading::exec
