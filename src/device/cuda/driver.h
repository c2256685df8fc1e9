// The CUDA driver, found at run time: one binary serves machines with and without it.
//
// The few types and numbers of its interface that are used are declared here by hand; they are a stable ABI. Nothing
// else includes a CUDA header, and nothing links to it. Thread-safe: the driver is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "lading/result.h"

namespace lading::device::cuda {

using Status = int;
using Ordinal = int;
using Address = std::uint64_t;
using Context = struct ContextTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using Module = struct ModuleTag*;
using Function = struct FunctionTag*;

inline constexpr Status kSuccess = 0;
inline constexpr Status kInvalidValue = 1;
inline constexpr Status kOutOfMemory = 2;
inline constexpr Status kNotInitialized = 3;
inline constexpr Status kNoGpu = 100;
inline constexpr Status kInvalidImage = 200;
inline constexpr Status kNoBinaryForGpu = 209;
inline constexpr Status kInvalidPtx = 218;
inline constexpr Status kUnsupportedPtx = 222;
inline constexpr Status kOperatingSystem = 304;
inline constexpr Status kAlreadyRegistered = 712;
inline constexpr Status kNotRegistered = 713;
inline constexpr Status kNotSupported = 801;
inline constexpr Status kFirstOfCapture = 900;
inline constexpr Status kLastOfCapture = 908;

inline constexpr int kComputeCapabilityMajor = 75;
inline constexpr int kComputeCapabilityMinor = 76;
inline constexpr int kPointerMemoryType = 2;
inline constexpr int kPointerOrdinal = 9;
inline constexpr int kPointerRangeStart = 11;
inline constexpr int kPointerRangeSize = 12;
inline constexpr unsigned kMemoryOfDevice = 2;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventBlockingSync = 1;
inline constexpr unsigned kEventWithoutTiming = 2;
inline constexpr unsigned kRegisterPortable = 1;
inline constexpr unsigned kRegisterMapped = 2;

/// A copy of rows, from host to device. The driver's CUDA_MEMCPY2D.
struct RowCopy {
  std::size_t source_x_bytes = 0;
  std::size_t source_y = 0;
  unsigned source_type = 1;  // host
  const void* source_host = nullptr;
  Address source_device = 0;
  void* source_array = nullptr;
  std::size_t source_pitch_bytes = 0;
  std::size_t target_x_bytes = 0;
  std::size_t target_y = 0;
  unsigned target_type = 2;  // device
  void* target_host = nullptr;
  Address target_device = 0;
  void* target_array = nullptr;
  std::size_t target_pitch_bytes = 0;
  std::size_t row_bytes = 0;
  std::size_t rows = 0;
};

// One line per function: our name, the driver's symbol, parameters.
#define LADING_CUDA_FUNCTIONS(X)                                                                                      \
  X(init, "cuInit", unsigned flags)                                                                                   \
  X(driver_version, "cuDriverGetVersion", int* version)                                                               \
  X(error_name, "cuGetErrorName", Status status, const char** name)                                                   \
  X(error_text, "cuGetErrorString", Status status, const char** text)                                                 \
  X(device_count, "cuDeviceGetCount", int* count)                                                                     \
  X(device_get, "cuDeviceGet", Ordinal* device, int index)                                                            \
  X(device_name, "cuDeviceGetName", char* name, int size, Ordinal device)                                             \
  X(device_attribute, "cuDeviceGetAttribute", int* value, int attribute, Ordinal device)                              \
  X(device_total_memory, "cuDeviceTotalMem_v2", std::size_t* size_bytes, Ordinal device)                              \
  X(retain_context, "cuDevicePrimaryCtxRetain", Context* context, Ordinal device)                                     \
  X(release_context, "cuDevicePrimaryCtxRelease_v2", Ordinal device)                                                  \
  X(push_context, "cuCtxPushCurrent_v2", Context context)                                                             \
  X(pop_context, "cuCtxPopCurrent_v2", Context* context)                                                              \
  X(synchronize_context, "cuCtxSynchronize", )                                                                        \
  X(memory_info, "cuMemGetInfo_v2", std::size_t* free_bytes, std::size_t* total_bytes)                                \
  X(allocate, "cuMemAlloc_v2", Address* address, std::size_t size_bytes)                                              \
  X(free, "cuMemFree_v2", Address address)                                                                            \
  X(register_host, "cuMemHostRegister_v2", void* memory, std::size_t size_bytes, unsigned flags)                      \
  X(unregister_host, "cuMemHostUnregister", void* memory)                                                             \
  X(mapped_address, "cuMemHostGetDevicePointer_v2", Address* address, void* memory, unsigned flags)                   \
  X(pointer_attributes, "cuPointerGetAttributes", unsigned count, int* attributes, void** values, Address address)    \
  X(copy_to_device, "cuMemcpyHtoDAsync_v2", Address to, const void* from, std::size_t size_bytes, Stream stream)      \
  X(copy_rows, "cuMemcpy2DAsync_v2", const RowCopy* copy, Stream stream)                                              \
  X(copy_to_host, "cuMemcpyDtoHAsync_v2", void* to, Address from, std::size_t size_bytes, Stream stream)              \
  X(set_bytes, "cuMemsetD8Async", Address to, unsigned char value, std::size_t size_bytes, Stream stream)             \
  X(create_stream, "cuStreamCreate", Stream* stream, unsigned flags)                                                  \
  X(destroy_stream, "cuStreamDestroy_v2", Stream stream)                                                              \
  X(synchronize_stream, "cuStreamSynchronize", Stream stream)                                                         \
  X(create_event, "cuEventCreate", Event* event, unsigned flags)                                                      \
  X(destroy_event, "cuEventDestroy_v2", Event event)                                                                  \
  X(record_event, "cuEventRecord", Event event, Stream stream)                                                        \
  X(synchronize_event, "cuEventSynchronize", Event event)                                                             \
  X(wait_event, "cuStreamWaitEvent", Stream stream, Event event, unsigned flags)                                      \
  X(load_module, "cuModuleLoadData", Module* module, const void* image)                                               \
  X(unload_module, "cuModuleUnload", Module module)                                                                   \
  X(find_function, "cuModuleGetFunction", Function* function, Module module, const char* name)                        \
  X(launch, "cuLaunchKernel", Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, \
    unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream, void** parameters, void** extra)

/// The library that is looked for, unless the environment names another in kLibraryVariable.
inline constexpr const char* kLibrary = "libcuda.so.1";
inline constexpr const char* kLibraryVariable = "LADING_LIBCUDA";

/// The driver's functions. A value: the library stays loaded for the life of the process.
class Driver {
 public:
  /// Opens and initialises it. An error says what is missing: the library, a newer driver, a GPU.
  static Result<Driver> find();

#define LADING_MEMBER(member, symbol, ...) Status (*member)(__VA_ARGS__) = nullptr;
  LADING_CUDA_FUNCTIONS(LADING_MEMBER)
#undef LADING_MEMBER

  [[nodiscard]] std::string version_text() const;           ///< "13.0"
  [[nodiscard]] std::string describe(Status status) const;  ///< "CUDA_ERROR_… (700): …"
  /// What went wrong in the driver's function `what`.
  [[nodiscard]] Error error(Status status, std::string_view what) const;

 private:
  int version_ = 0;
};

}  // namespace lading::device::cuda
