// The bytes of a stretch as the file has them, in host memory: from where they lie, or gathered, cast, and fetched from
// a device. Internal to exec/save.
//
// Thread-safe, for threads with lanes of their own. What is returned lies in a staging buffer of the lanes, or in the
// model's memory, and is valid until the next call with these lanes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "device/slab.h"
#include "exec/crew.h"
#include "exec/save/gather.h"
#include "lading/result.h"

namespace lading::exec {

/// The host's lane is the first of every thread's.
inline constexpr std::size_t kHostLane = 0;

/// A destination's memory.
struct SavedMemory {
  const std::byte* data = nullptr;
  std::uint64_t size_bytes = 0;
  std::size_t lane = kHostLane;  ///< of its device
};

class HostBytes {
 public:
  Result<std::span<const std::byte>> of(const Lanes& lanes, const GatherInputs& inputs, const Stretch& stretch,
                                        const SavedMemory& memory);

  /// Whether a write from a device with staging buffers of this size may need all of its destination in host memory.
  [[nodiscard]] static bool may_fetch_whole(const plan::Write& write, DType memory_dtype, std::uint64_t buffer_bytes);

  /// Forgets what was fetched whole. Nobody may be at it.
  void clear() { whole_.clear(); }

 private:
  /// Elements that are scattered over a device's memory: fetched one by one they would take for ever, so all of the
  /// destination is.
  Result<const std::byte*> fetched_whole(device::Lane& lane, const SavedMemory& memory);

  std::mutex mutex_;
  std::map<const std::byte*, std::shared_ptr<const device::Slab>> whole_;
};

}  // namespace lading::exec
