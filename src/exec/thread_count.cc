#include "exec/thread_count.h"

#include <algorithm>

#include "io/machine.h"

namespace lading::exec {

std::uint32_t thread_count(std::uint32_t requested, std::uint32_t processors) {
  if (requested > 0) return std::min(requested, kMostThreadsOnRequest);
  // A machine that copies with all its processors has none left for interrupts and drivers, and is slower
  // (bench/results): one in eight stays free.
  return std::min(processors - processors / 8, kMostThreads);
}

// Not hardware_concurrency(), which knows neither affinity nor the limits of a container.
std::uint32_t usable_processors() { return io::look_at_cpus("").usable(); }

}  // namespace lading::exec
