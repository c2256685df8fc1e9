// What the machine itself can do, in the same run: the bus, the memory, the disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/cuda_memory.h"

namespace lading::bench {

/// Pinned host memory to the GPU, GB/s: one buffer of huge pages, copies of 8 MiB, several in flight.
Result<double, std::string> pinned_copy_speed(const Cuda& cuda);

/// Host memory to host memory with all cores, GB/s of what is copied.
Result<double, std::string> memcpy_speed();

struct ReadShape {
  unsigned threads = 16;
  std::uint64_t block_bytes = std::uint64_t{8} << 20;
};

/// All bytes of the files past the page cache, GB/s.
Result<double, std::string> direct_read_speed(const std::vector<std::string>& paths, const ReadShape& shape);

}  // namespace lading::bench
