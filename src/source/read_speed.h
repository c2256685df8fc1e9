// How fast the files of a checkpoint can be read, from a few small parts of them.
#pragma once

#include <cstdint>
#include <vector>

#include "lading/result.h"
#include "source/checkpoint_source.h"

namespace lading::source {

/// One of several ranks that measure at the same time. No two of them read the same bytes, because the second would
/// find them in the page cache.
struct Sampler {
  std::uint64_t rank = 0;
  std::uint64_t ranks = 1;
};

/// Bytes per second, of these files (into CheckpointSource::shards()). All ranks together read at most a 400th of them.
[[nodiscard]] Result<double> read_speed(const CheckpointSource& source, const std::vector<std::uint32_t>& files,
                                        Sampler sampler);

}  // namespace lading::source
