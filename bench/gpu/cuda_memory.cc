#include "gpu/cuda_memory.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>

namespace lading::bench {

// As the driver's manual has them; the names behind dlsym() carry the version of their arguments.
struct Cuda::Calls {
  using Address = unsigned long long;
  int (*init)(unsigned flags);
  int (*get_device)(int* device, int ordinal);
  int (*device_name)(char* name, int length, int device);
  int (*driver_version)(int* version);
  int (*retain_context)(void** context, int device);
  int (*set_context)(void* context);
  int (*synchronise_context)();
  int (*allocate)(Address* address, std::size_t size_bytes);
  int (*fill)(Address address, unsigned char value, std::size_t count);
  int (*to_host)(void* host, Address device, std::size_t size_bytes);
  int (*to_device)(Address device, const void* host, std::size_t size_bytes);
  int (*to_device_async)(Address device, const void* host, std::size_t size_bytes, Stream stream);
  int (*make_stream)(Stream* stream, unsigned flags);
  int (*synchronise_stream)(Stream stream);
  int (*register_host)(void* memory, std::size_t size_bytes, unsigned flags);
  int (*unregister_host)(void* memory);
};

namespace {

constexpr unsigned kNonBlockingStream = 1;
constexpr unsigned kPortable = 1;

// A bench that fails half-way has nothing to tell but where.
void must(int result, const char* what) {
  if (result == 0) return;
  fmt::print(stderr, "gpu bench: {} failed with CUDA error {}\n", what, result);
  std::exit(1);
}

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

unsigned long long address_of(const std::byte* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

}  // namespace

Result<Cuda, std::string> Cuda::open() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return fail(std::string("no CUDA driver: libcuda.so.1 is not there"));
  static Calls calls = {};
  const bool complete = find(library, "cuInit", calls.init) && find(library, "cuDeviceGet", calls.get_device) &&
                        find(library, "cuDeviceGetName", calls.device_name) &&
                        find(library, "cuDriverGetVersion", calls.driver_version) &&
                        find(library, "cuDevicePrimaryCtxRetain", calls.retain_context) &&
                        find(library, "cuCtxSetCurrent", calls.set_context) &&
                        find(library, "cuCtxSynchronize", calls.synchronise_context) &&
                        find(library, "cuMemAlloc_v2", calls.allocate) && find(library, "cuMemsetD8_v2", calls.fill) &&
                        find(library, "cuMemcpyDtoH_v2", calls.to_host) &&
                        find(library, "cuMemcpyHtoD_v2", calls.to_device) &&
                        find(library, "cuMemcpyHtoDAsync_v2", calls.to_device_async) &&
                        find(library, "cuStreamCreate", calls.make_stream) &&
                        find(library, "cuStreamSynchronize", calls.synchronise_stream) &&
                        find(library, "cuMemHostRegister_v2", calls.register_host) &&
                        find(library, "cuMemHostUnregister", calls.unregister_host);
  if (!complete) return fail(std::string("the CUDA driver lacks a function of CUDA 11"));
  if (const int result = calls.init(0); result != 0) return fail(fmt::format("cuInit failed with {}", result));
  int device = 0;
  if (const int result = calls.get_device(&device, 0); result != 0) {
    return fail(fmt::format("there is no GPU 0: CUDA error {}", result));
  }
  void* context = nullptr;
  if (const int result = calls.retain_context(&context, device); result != 0) {
    return fail(fmt::format("GPU 0 gives no context: CUDA error {}", result));
  }
  Cuda cuda(&calls, context);
  cuda.bind_thread();
  return cuda;
}

void Cuda::bind_thread() const { must(calls_->set_context(context_), "cuCtxSetCurrent"); }

std::string Cuda::device_name() const {
  std::array<char, 128> name = {};
  must(calls_->device_name(name.data(), static_cast<int>(name.size()), 0), "cuDeviceGetName");
  return name.data();
}

int Cuda::driver_version() const {
  int version = 0;
  must(calls_->driver_version(&version), "cuDriverGetVersion");
  return version;
}

std::byte* Cuda::allocate(std::size_t size_bytes) const {
  Calls::Address address = 0;
  if (calls_->allocate(&address, size_bytes) != 0) return nullptr;
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
}

void Cuda::fill(std::span<std::byte> device, unsigned char value) const {
  must(calls_->fill(address_of(device.data()), value, device.size()), "cuMemsetD8");
  synchronise();
}

void Cuda::to_host(std::span<std::byte> host, const std::byte* device) const {
  must(calls_->to_host(host.data(), address_of(device), host.size()), "cuMemcpyDtoH");
}

void Cuda::to_device(std::byte* device, std::span<const std::byte> host) const {
  must(calls_->to_device(address_of(device), host.data(), host.size()), "cuMemcpyHtoD");
}

void Cuda::to_device_async(std::byte* device, std::span<const std::byte> host, Stream stream) const {
  must(calls_->to_device_async(address_of(device), host.data(), host.size(), stream), "cuMemcpyHtoDAsync");
}

Cuda::Stream Cuda::make_stream() const {
  Stream stream = nullptr;
  must(calls_->make_stream(&stream, kNonBlockingStream), "cuStreamCreate");
  return stream;
}

void Cuda::synchronise(Stream stream) const { must(calls_->synchronise_stream(stream), "cuStreamSynchronize"); }

void Cuda::synchronise() const { must(calls_->synchronise_context(), "cuCtxSynchronize"); }

void Cuda::pin(std::span<std::byte> memory) const {
  must(calls_->register_host(memory.data(), memory.size(), kPortable), "cuMemHostRegister");
}

void Cuda::unpin(std::span<std::byte> memory) const {
  must(calls_->unregister_host(memory.data()), "cuMemHostUnregister");
}

}  // namespace lading::bench
