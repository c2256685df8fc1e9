// Calls of the driver: copies and constants, done later by the stream's thread.
//
// As with the driver, pinned memory is read and written when the operation is done, pageable memory while the call
// lasts.
#include <fmt/format.h>

#include <cstring>

#include "cuda_shim/gate.h"

namespace lading::cuda_shim {
namespace {

/// Counts an operation as a user of the region for as long as it lives.
std::shared_ptr<Region> in_use(const std::shared_ptr<Region>& region) {
  ++region->in_use;
  return {region.get(), [region](Region*) { --region->in_use; }};
}

/// Rows of bytes, one under the other.
struct Rows {
  std::uint64_t row_bytes = 0;
  std::uint64_t rows = 1;
  std::uint64_t pitch_bytes = 0;

  [[nodiscard]] std::uint64_t reach_bytes() const { return (rows - 1) * pitch_bytes + row_bytes; }
};

/// What a copy is from, or to, on the host.
struct HostSide {
  const std::byte* bytes = nullptr;
  std::shared_ptr<Region> pinned;               ///< kept, where it is
  std::shared_ptr<std::vector<std::byte>> own;  ///< a copy, of pageable memory
};

Status illegal(Gpu& gpu, std::string_view what) {
  State::get().add_violation(fmt::format("{} outside of the memory of GPU {}", what, gpu.ordinal));
  gpu.sticky = kIllegalAddress;
  gpu.told = true;
  return kIllegalAddress;
}

Status find_source(Gpu& gpu, const void* memory, std::uint64_t size_bytes, HostSide& side) {
  State& state = State::get();
  side.bytes = static_cast<const std::byte*>(memory);
  const std::shared_ptr<Region> region = state.memory.find_registered(memory);
  if (region != nullptr && (region->gpu == kAnyGpu || region->gpu == gpu.ordinal)) {
    if (size_bytes > region->size_bytes - static_cast<std::uint64_t>(side.bytes - region->bytes)) {
      state.add_violation("a copy from memory that is registered only in part");
      return kInvalidValue;
    }
    side.pinned = in_use(region);
    return kSuccess;
  }
  side.own = std::make_shared<std::vector<std::byte>>(side.bytes, side.bytes + size_bytes);
  side.bytes = side.own->data();
  return kSuccess;
}

void copy_rows(std::byte* to, const Rows& target, const std::byte* from, std::uint64_t source_pitch_bytes) {
  for (std::uint64_t row = 0; row < target.rows; ++row) {
    std::memcpy(to + row * target.pitch_bytes, from + row * source_pitch_bytes, target.row_bytes);
  }
}

Status issue_copy(Gpu& gpu, StreamObject& stream, Address to, const Rows& target, const void* from,
                  std::uint64_t source_pitch_bytes) {
  State& state = State::get();
  if (state.memory.find(gpu.ordinal, to, target.reach_bytes()) == nullptr) return illegal(gpu, "a copy");
  HostSide side;
  const std::uint64_t source_bytes = (target.rows - 1) * source_pitch_bytes + target.row_bytes;
  if (const Status status = find_source(gpu, from, source_bytes, side); status != kSuccess) return status;
  state.issue(stream, OperationKind::kTransfer, [&gpu, to, target, side, source_pitch_bytes]() -> Outcome {
    const std::shared_ptr<Region> region = State::get().memory.find(gpu.ordinal, to, target.reach_bytes());
    if (region == nullptr) return {kIllegalAddress, nullptr};
    std::byte* const bytes = region->bytes + (to - region->address);
    copy_rows(bytes, target, side.bytes, source_pitch_bytes);
    gpu.written_bytes += target.row_bytes * target.rows;
    return {kSuccess, bytes};
  });
  return kSuccess;
}

}  // namespace

Status shim_copy_to_device(Address to, const void* from, std::size_t size_bytes, Stream stream) {
  return gated(Fn::copy_to_device, [&](Gpu* gpu) -> Status {
    const std::shared_ptr<StreamObject> found = State::get().stream(*gpu, stream);
    if (found == nullptr) return kInvalidHandle;
    if (size_bytes == 0) return kSuccess;
    return issue_copy(*gpu, *found, to, {size_bytes, 1, size_bytes}, from, size_bytes);
  });
}

Status shim_copy_rows(const RowCopy* copy, Stream stream) {
  return gated(Fn::copy_rows, [&](Gpu* gpu) -> Status {
    constexpr std::uint64_t kMaxPitchBytes = (std::uint64_t{1} << 31) - 1;
    const std::shared_ptr<StreamObject> found = State::get().stream(*gpu, stream);
    if (found == nullptr) return kInvalidHandle;
    if (copy->source_type != 1 || copy->target_type != 2) return kInvalidValue;
    if (copy->source_pitch_bytes > kMaxPitchBytes || copy->target_pitch_bytes > kMaxPitchBytes ||
        copy->source_pitch_bytes < copy->source_x_bytes + copy->row_bytes ||
        copy->target_pitch_bytes < copy->target_x_bytes + copy->row_bytes) {
      return kInvalidValue;
    }
    if (copy->row_bytes == 0 || copy->rows == 0) return kSuccess;
    const auto* const from = static_cast<const std::byte*>(copy->source_host) +
                             copy->source_y * copy->source_pitch_bytes + copy->source_x_bytes;
    const Address to = copy->target_device + copy->target_y * copy->target_pitch_bytes + copy->target_x_bytes;
    return issue_copy(*gpu, *found, to, {copy->row_bytes, copy->rows, copy->target_pitch_bytes}, from,
                      copy->source_pitch_bytes);
  });
}

Status shim_copy_to_host(void* to, Address from, std::size_t size_bytes, Stream stream) {
  return gated(Fn::copy_to_host, [&](Gpu* gpu) -> Status {
    State& state = State::get();
    const std::shared_ptr<StreamObject> found = state.stream(*gpu, stream);
    if (found == nullptr) return kInvalidHandle;
    if (size_bytes == 0) return kSuccess;
    if (state.memory.find(gpu->ordinal, from, size_bytes) == nullptr) return illegal(*gpu, "a copy");
    std::shared_ptr<Region> pinned = state.memory.find_registered(to);
    const bool waits = pinned == nullptr;
    if (pinned != nullptr) pinned = in_use(pinned);
    state.issue(*found, OperationKind::kOther, [gpu, to, from, size_bytes, pinned]() -> Outcome {
      const std::shared_ptr<Region> region = State::get().memory.find(gpu->ordinal, from, size_bytes);
      if (region == nullptr) return {kIllegalAddress, nullptr};
      std::memcpy(to, region->bytes + (from - region->address), size_bytes);
      return {};
    });
    if (waits) found->queue->wait();
    if (gpu->sticky != 0) gpu->told = true;
    return gpu->sticky;
  });
}

Status shim_set_bytes(Address to, unsigned char value, std::size_t size_bytes, Stream stream) {
  return gated(Fn::set_bytes, [&](Gpu* gpu) -> Status {
    State& state = State::get();
    const std::shared_ptr<StreamObject> found = state.stream(*gpu, stream);
    if (found == nullptr) return kInvalidHandle;
    if (size_bytes == 0) return kSuccess;
    if (state.memory.find(gpu->ordinal, to, size_bytes) == nullptr) return illegal(*gpu, "a constant");
    state.issue(*found, OperationKind::kOther, [gpu, to, value, size_bytes]() -> Outcome {
      const std::shared_ptr<Region> region = State::get().memory.find(gpu->ordinal, to, size_bytes);
      if (region == nullptr) return {kIllegalAddress, nullptr};
      std::memset(region->bytes + (to - region->address), value, size_bytes);
      return {};
    });
    return kSuccess;
  });
}

}  // namespace lading::cuda_shim
