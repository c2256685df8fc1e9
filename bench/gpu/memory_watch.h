// How much host memory a stretch of time took: the kernel's own high-water mark, and its parts by looking often.
//
// One at a time per process: the mark is the process's.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace lading::bench {

struct HostMemory {
  std::uint64_t total_kb = 0;  ///< VmHWM, or VmRSS at the start
  std::uint64_t anon_kb = 0;
  std::uint64_t file_kb = 0;
  std::uint64_t shared_kb = 0;
  std::uint64_t machine_kb = 0;  ///< of all processes and the kernel: what a driver pins is in no process's figures
};

class MemoryWatch {
 public:
  MemoryWatch();
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;

  /// The most above the start since then. Ends the watch.
  HostMemory stop();

 private:
  void look();

  HostMemory start_;
  HostMemory most_;
  std::atomic<bool> stopped_ = false;
  std::jthread thread_;
};

}  // namespace lading::bench
