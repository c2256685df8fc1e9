// Calls of the driver: memory of the device, registered memory of the host.
#include <fmt/format.h>
#include <sys/mman.h>

#include <fstream>

#include "cuda_shim/gate.h"

namespace lading::cuda_shim {
namespace {

void dump(const Region& region) {
  State& state = State::get();
  const std::string folder = state.config().dump_folder;
  if (folder.empty()) return;
  std::ofstream file(fmt::format("{}/gpu{}-{}.bin", folder, region.gpu, ++state.dumped), std::ios::binary);
  file.write(reinterpret_cast<const char*>(region.bytes), static_cast<std::streamsize>(region.size_bytes));
}

bool is_mapped_memory(const Region& region) {
  const std::uint64_t pages = (region.size_bytes + kPageBytes - 1) / kPageBytes;
  std::vector<unsigned char> resident(pages);
  return ::mincore(region.bytes, region.size_bytes, resident.data()) == 0;
}

}  // namespace

Status shim_memory_info(std::size_t* free_bytes, std::size_t* total_bytes) {
  return gated(Fn::memory_info, [&](Gpu* gpu) {
    State& state = State::get();
    *total_bytes = state.config().memory_bytes;
    *free_bytes = *total_bytes - state.memory.allocated_bytes(gpu->ordinal);
    return kSuccess;
  });
}

Status shim_allocate(Address* address, std::size_t size_bytes) {
  return gated(Fn::allocate, [&](Gpu* gpu) -> Status {
    State& state = State::get();
    if (size_bytes == 0) return kInvalidValue;
    if (size_bytes > state.config().memory_bytes - state.memory.allocated_bytes(gpu->ordinal)) return kOutOfMemory;
    *address = state.memory.allocate(gpu->ordinal, size_bytes)->address;
    state.note_allocated(*gpu);
    return kSuccess;
  });
}

Status shim_free(Address address) {
  return gated(Fn::free, [&](Gpu* gpu) -> Status {
    State& state = State::get();
    const Status status = state.synchronize(*gpu);
    const std::shared_ptr<Region> region = state.memory.take(address);
    if (region == nullptr || region->gpu != gpu->ordinal) {
      state.add_violation("memory was freed that is none of this GPU's");
      return kInvalidValue;
    }
    if (is_overrun(*region)) state.add_violation("bytes behind device memory were written: " + region->text());
    dump(*region);
    return status;
  });
}

Status shim_register_host(void* memory, std::size_t size_bytes, unsigned flags) {
  return gated(Fn::register_host, [&](Gpu* gpu) -> Status {
    State& state = State::get();
    if (state.memory.is_registered(memory, size_bytes)) {
      state.add_violation("host memory was registered twice");
      return kAlreadyRegistered;
    }
    if (size_bytes == 0 || number_of(memory) % kPageBytes != 0) {
      state.add_violation(fmt::format("host memory was registered that is not aligned to pages: {} bytes", size_bytes));
      return kInvalidValue;
    }
    const Config config = state.config();
    if (size_bytes > config.memlock_bytes - std::min(config.memlock_bytes, state.memory.registered_bytes())) {
      return config.memlock_code;
    }
    Registration wanted{memory, size_bytes, gpu->ordinal, gpu->ordinal, false};
    if ((flags & device::cuda::kRegisterPortable) != 0) wanted.gpu = kAnyGpu;
    wanted.mapped = (flags & device::cuda::kRegisterMapped) != 0;
    state.memory.register_host(wanted);
    state.note_registered();
    return kSuccess;
  });
}

Status shim_unregister_host(void* memory) {
  return gated(Fn::unregister_host, [&](Gpu* gpu) -> Status {
    State& state = State::get();
    const std::shared_ptr<Region> region = state.memory.take_registered(memory);
    if (region == nullptr) {
      state.add_violation("host memory was unregistered that was not registered");
      return kNotRegistered;
    }
    if (gpu->sticky == 0 && region->in_use != 0) {
      state.add_violation("host memory was unregistered while copies were under way");
      state.synchronize(*gpu);
    }
    if (!is_mapped_memory(*region)) state.add_violation("host memory was given back before it was unregistered");
    return kSuccess;
  });
}

Status shim_mapped_address(Address* address, void* memory, unsigned flags) {
  return gated(Fn::mapped_address, [&](Gpu* gpu) -> Status {
    const std::shared_ptr<Region> region = State::get().memory.find_registered(memory);
    if (flags != 0 || region == nullptr || !region->mapped) return kInvalidValue;
    if (region->gpu != kAnyGpu && region->gpu != gpu->ordinal) return kInvalidValue;
    *address = region->address + static_cast<std::uint64_t>(static_cast<std::byte*>(memory) - region->bytes);
    return kSuccess;
  });
}

Status shim_pointer_attributes(unsigned count, int* attributes, void** values, Address address) {
  return gated(Fn::pointer_attributes, [&](Gpu*) -> Status {
    const std::shared_ptr<Region> region = State::get().memory.find(kAnyGpu, address, 1);
    const bool is_device = region != nullptr && region->kind == Region::Kind::kDevice;
    for (unsigned i = 0; i < count; ++i) {
      switch (attributes[i]) {
        case device::cuda::kPointerMemoryType:
          *static_cast<unsigned*>(values[i]) = is_device ? device::cuda::kMemoryOfDevice : region != nullptr ? 1 : 0;
          break;
        case device::cuda::kPointerOrdinal:
          *static_cast<int*>(values[i]) = region != nullptr ? region->owner : 0;
          break;
        case device::cuda::kPointerRangeStart:
          *static_cast<Address*>(values[i]) = region != nullptr ? region->address : 0;
          break;
        case device::cuda::kPointerRangeSize:
          *static_cast<std::size_t*>(values[i]) = region != nullptr ? region->size_bytes : 0;
          break;
        default: return kInvalidValue;
      }
    }
    return kSuccess;
  });
}

}  // namespace lading::cuda_shim
