// Calls of the driver: start, errors, devices, contexts.
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>

#include "cuda_shim/gate.h"

namespace lading::cuda_shim {
namespace {

struct Name {
  Status status;
  const char* name;
};

constexpr Name kNames[] = {
    {0, "CUDA_SUCCESS"},
    {1, "CUDA_ERROR_INVALID_VALUE"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY"},
    {3, "CUDA_ERROR_NOT_INITIALIZED"},
    {100, "CUDA_ERROR_NO_DEVICE"},
    {101, "CUDA_ERROR_INVALID_DEVICE"},
    {200, "CUDA_ERROR_INVALID_IMAGE"},
    {201, "CUDA_ERROR_INVALID_CONTEXT"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE"},
    {218, "CUDA_ERROR_INVALID_PTX"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM"},
    {400, "CUDA_ERROR_INVALID_HANDLE"},
    {500, "CUDA_ERROR_NOT_FOUND"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
    {719, "CUDA_ERROR_LAUNCH_FAILED"},
    {801, "CUDA_ERROR_NOT_SUPPORTED"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
    {999, "CUDA_ERROR_UNKNOWN"},
};

const char* name_of(Status status) {
  for (const Name& name : kNames) {
    if (name.status == status) return name.name;
  }
  return nullptr;
}

Status find_gpu(Ordinal device, Gpu*& gpu) {
  gpu = State::get().gpu(device);
  return gpu != nullptr ? kSuccess : kInvalidDevice;
}

}  // namespace

Status shim_init(unsigned flags) {
  return gated(Fn::init, [&](Gpu*) -> Status {
    if (flags != 0) return kInvalidValue;
    State& state = State::get();
    if (state.config().gpus == 0) return device::cuda::kNoGpu;
    state.owner_process = ::getpid();
    return kSuccess;
  });
}

Status shim_driver_version(int* version) {
  return gated(Fn::driver_version, [&](Gpu*) {
    *version = State::get().config().version;
    return kSuccess;
  });
}

Status shim_error_name(Status status, const char** name) {
  return gated(Fn::error_name, [&](Gpu*) {
    *name = name_of(status);
    return *name != nullptr ? kSuccess : kInvalidValue;
  });
}

Status shim_error_text(Status status, const char** text) {
  return gated(Fn::error_text, [&](Gpu*) {
    *text = name_of(status) != nullptr ? "what the stand-in for the driver says" : nullptr;
    return *text != nullptr ? kSuccess : kInvalidValue;
  });
}

Status shim_device_count(int* count) {
  return gated(Fn::device_count, [&](Gpu*) {
    *count = State::get().config().gpus;
    return kSuccess;
  });
}

// A device is its index here, as with the driver; nobody promises that.
Status shim_device_get(Ordinal* device, int index) {
  return gated(Fn::device_get, [&](Gpu*) -> Status {
    Gpu* gpu = nullptr;
    *device = index;
    return find_gpu(index, gpu);
  });
}

Status shim_device_name(char* name, int size, Ordinal device) {
  return gated(Fn::device_name, [&](Gpu*) -> Status {
    Gpu* gpu = nullptr;
    if (find_gpu(device, gpu) != kSuccess || size < 1) return kInvalidDevice;
    const std::string text = fmt::format("Pretended GPU {}", device);
    const std::size_t length = std::min(text.size(), static_cast<std::size_t>(size) - 1);
    std::memcpy(name, text.data(), length);
    name[length] = '\0';
    return kSuccess;
  });
}

Status shim_device_attribute(int* value, int attribute, Ordinal device) {
  return gated(Fn::device_attribute, [&](Gpu*) -> Status {
    Gpu* gpu = nullptr;
    if (find_gpu(device, gpu) != kSuccess) return kInvalidDevice;
    const int capability = State::get().config().capability;
    switch (attribute) {
      case device::cuda::kComputeCapabilityMajor: *value = capability / 10; return kSuccess;
      case device::cuda::kComputeCapabilityMinor: *value = capability % 10; return kSuccess;
      default: return kInvalidValue;
    }
  });
}

Status shim_device_total_memory(std::size_t* size_bytes, Ordinal device) {
  return gated(Fn::device_total_memory, [&](Gpu*) -> Status {
    Gpu* gpu = nullptr;
    *size_bytes = State::get().config().memory_bytes;
    return find_gpu(device, gpu);
  });
}

Status shim_retain_context(Context* context, Ordinal device) {
  return gated(Fn::retain_context, [&](Gpu*) -> Status {
    Gpu* gpu = nullptr;
    if (find_gpu(device, gpu) != kSuccess) return kInvalidDevice;
    if (gpu->sticky != 0) {
      if (gpu->told.exchange(true)) ++State::get().work_after_sticky;
      return gpu->sticky;
    }
    ++gpu->retained;
    *context = reinterpret_cast<Context>(gpu);
    return kSuccess;
  });
}

Status shim_release_context(Ordinal device) {
  return gated(Fn::release_context, [&](Gpu*) -> Status {
    Gpu* gpu = nullptr;
    if (find_gpu(device, gpu) != kSuccess) return kInvalidDevice;
    if (gpu->retained == 0) {
      State::get().add_violation("a context was released more often than retained");
      return kInvalidContext;
    }
    if (gpu->retained == 1 && gpu->sticky == 0) State::get().destroy_context(*gpu);
    --gpu->retained;
    return kSuccess;
  });
}

Status shim_push_context(Context context) {
  return gated(Fn::push_context, [&](Gpu*) -> Status {
    State& state = State::get();
    for (int i = 0; i < state.config().gpus; ++i) {
      Gpu* const gpu = state.gpu(i);
      if (reinterpret_cast<Context>(gpu) != context || gpu->retained == 0) continue;
      state.push(gpu);
      return kSuccess;
    }
    state.add_violation("a context was pushed that is none");
    return kInvalidContext;
  });
}

Status shim_pop_context(Context* context) {
  return gated(Fn::pop_context, [&](Gpu*) -> Status {
    Gpu* const gpu = State::get().pop();
    if (gpu == nullptr) {
      State::get().add_violation("a context was popped where none was");
      return kInvalidContext;
    }
    if (context != nullptr) *context = reinterpret_cast<Context>(gpu);
    return kSuccess;
  });
}

Status shim_synchronize_context() {
  return gated(Fn::synchronize_context, [](Gpu* gpu) {
    const Status status = State::get().synchronize(*gpu);
    if (status != kSuccess) gpu->told = true;
    return status;
  });
}

}  // namespace lading::cuda_shim
