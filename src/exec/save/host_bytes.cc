#include "exec/save/host_bytes.h"

#include <utility>
#include <vector>

#include "base/element_bytes.h"
#include "base/loop_nest.h"

namespace lading::exec {
namespace {

// A call of a driver costs as much as some ten thousand bytes on their way.
constexpr std::uint64_t kLeastFetchBytes = 4096;

Result<std::span<const std::byte>> moved_on_host(const Lanes& lanes, const GatherInputs& inputs, const Stretch& stretch,
                                                 const std::byte* begin) {
  const std::uint64_t bytes = bytes_of_elems(stretch.elems(), inputs.file_dtype);
  if (stretch.loops.empty() && inputs.file_dtype == inputs.memory_dtype) return std::span(begin, bytes);
  device::Lane& host = *lanes[kHostLane];
  LADING_ASSIGN_OR_RETURN(const std::span<std::byte> buffer, host.acquire_staging_buffer());
  LADING_TRY(
      host.move({begin, buffer.data(), stretch.run_elems, inputs.memory_dtype, inputs.file_dtype, stretch.loops}));
  LADING_TRY(host.release_staging_buffer());
  return std::span<const std::byte>(buffer.data(), bytes);
}

}  // namespace

Result<std::span<const std::byte>> HostBytes::of(const Lanes& lanes, const GatherInputs& inputs, const Stretch& stretch,
                                                 const SavedMemory& memory) {
  const std::byte* const begin = memory.data + stretch.memory_begin_bytes;
  if (memory.lane == kHostLane) return moved_on_host(lanes, inputs, stretch, begin);
  device::Lane& lane = *lanes[memory.lane];
  const std::uint64_t run_bytes = bytes_of_elems(stretch.run_elems, inputs.memory_dtype);
  const std::uint64_t reach_bytes = source_reach(stretch.loops) + run_bytes;
  LADING_ASSIGN_OR_RETURN(const std::span<std::byte> buffer, lane.acquire_staging_buffer());
  if (reach_bytes <= buffer.size()) {
    LADING_TRY(lane.fetch(begin, buffer.first(reach_bytes)));
    LADING_TRY(lane.release_staging_buffer());
    return moved_on_host(lanes, inputs, stretch, buffer.data());
  }
  if (run_bytes < kLeastFetchBytes) {
    LADING_TRY(lane.release_staging_buffer());
    LADING_ASSIGN_OR_RETURN(const std::byte* whole, fetched_whole(lane, memory));
    return moved_on_host(lanes, inputs, stretch, whole + stretch.memory_begin_bytes);
  }
  // Run by run, one behind the other; then they are as the file has them but for the cast.
  std::uint64_t at = 0;
  Result<void> fetched;
  for_each_run(stretch.loops, [&](const RunOffsets& offsets) {
    fetched = lane.fetch(begin + offsets.source, buffer.subspan(at, run_bytes));
    at += run_bytes;
    return fetched.has_value();
  });
  LADING_TRY(std::move(fetched));
  LADING_TRY(lane.release_staging_buffer());
  return moved_on_host(lanes, inputs, {stretch.file_begin_bytes, 0, stretch.elems(), {}}, buffer.data());
}

bool HostBytes::may_fetch_whole(const plan::Write& write, DType memory_dtype, std::uint64_t buffer_bytes) {
  const std::uint64_t run_bytes = bytes_of_elems(write.run_elems, memory_dtype);
  return run_bytes < kLeastFetchBytes && source_reach(write.loops) + run_bytes > buffer_bytes;
}

Result<const std::byte*> HostBytes::fetched_whole(device::Lane& lane, const SavedMemory& memory) {
  const std::lock_guard guard(mutex_);
  std::shared_ptr<const device::Slab>& known = whole_[memory.data];
  if (known == nullptr) {
    LADING_ASSIGN_OR_RETURN(device::Slab slab, device::Slab::allocate(memory.size_bytes));
    LADING_TRY(lane.fetch(memory.data, slab.bytes().first(memory.size_bytes)));
    known = std::make_shared<const device::Slab>(std::move(slab));
  }
  return known->bytes().data();
}

}  // namespace lading::exec
