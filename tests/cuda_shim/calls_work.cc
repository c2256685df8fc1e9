// Calls of the driver: streams, events, modules, kernels.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "cuda_shim/gate.h"
#include "cuda_shim/kernels.h"
#include "device/cuda/kernel_jobs.h"

namespace lading::cuda_shim {
namespace {

/// An object of this GPU's context, or null, which is noted.
template <class T>
std::shared_ptr<T> of_gpu(std::shared_ptr<T> object, const Gpu& gpu, const char* what) {
  if (object != nullptr && object->gpu == &gpu) return object;
  State::get().add_violation(fmt::format("{} that is none of GPU {}'s", what, gpu.ordinal));
  return nullptr;
}

Status sticky_of(Gpu& gpu) {
  if (gpu.sticky != 0) gpu.told = true;
  return gpu.sticky;
}

bool is_image(const void* image) {
  constexpr char kElf[] = {0x7F, 'E', 'L', 'F'};
  constexpr std::uint32_t kFatBinary = 0xBA55ED50;
  const auto* const text = static_cast<const char*>(image);
  if (std::memcmp(text, kElf, sizeof(kElf)) == 0 || std::memcmp(text, &kFatBinary, sizeof(kFatBinary)) == 0)
    return true;
  return std::strstr(text, ".version") != nullptr && std::strstr(text, ".target") != nullptr;
}

}  // namespace

Status shim_create_stream(Stream* stream, unsigned flags) {
  return gated(Fn::create_stream, [&](Gpu* gpu) -> Status {
    if (flags > device::cuda::kStreamNonBlocking) return kInvalidValue;
    const auto made = std::make_shared<StreamObject>();
    made->gpu = gpu;
    made->queue = Queue::open();
    *stream = reinterpret_cast<Stream>(State::get().streams.add(made));
    return kSuccess;
  });
}

Status shim_destroy_stream(Stream stream) {
  return gated(Fn::destroy_stream, [&](Gpu* gpu) -> Status {
    const auto found = of_gpu(State::get().streams.take(number_of(stream)), *gpu, "a stream was destroyed");
    if (found == nullptr) return kInvalidHandle;
    found->queue->close();
    return kSuccess;
  });
}

Status shim_synchronize_stream(Stream stream) {
  return gated(Fn::synchronize_stream, [&](Gpu* gpu) -> Status {
    const std::shared_ptr<StreamObject> found = State::get().stream(*gpu, stream);
    if (found == nullptr) return kInvalidHandle;
    found->queue->wait();
    return sticky_of(*gpu);
  });
}

Status shim_create_event(Event* event, unsigned flags) {
  return gated(Fn::create_event, [&](Gpu* gpu) -> Status {
    if (flags > (device::cuda::kEventBlockingSync | device::cuda::kEventWithoutTiming)) return kInvalidValue;
    const auto made = std::make_shared<EventObject>();
    made->gpu = gpu;
    *event = reinterpret_cast<Event>(State::get().events.add(made));
    return kSuccess;
  });
}

Status shim_destroy_event(Event event) {
  return gated(Fn::destroy_event, [&](Gpu* gpu) -> Status {
    const auto found = of_gpu(State::get().events.take(number_of(event)), *gpu, "an event was destroyed");
    return found != nullptr ? kSuccess : kInvalidHandle;
  });
}

Status shim_record_event(Event event, Stream stream) {
  return gated(Fn::record_event, [&](Gpu* gpu) -> Status {
    State& state = State::get();
    const std::shared_ptr<StreamObject> on = state.stream(*gpu, stream);
    const auto found = of_gpu(state.events.find(number_of(event)), *gpu, "an event was recorded");
    if (found == nullptr || on == nullptr) return kInvalidHandle;
    const std::lock_guard lock(found->mutex);
    found->queue = on->queue;
    found->operation = on->queue->issue([] {});
    return kSuccess;
  });
}

Status shim_wait_event(Stream stream, Event event, unsigned) {
  return gated(Fn::wait_event, [&](Gpu* gpu) -> Status {
    State& state = State::get();
    const std::shared_ptr<StreamObject> on = state.stream(*gpu, stream);
    const auto found = of_gpu(state.events.find(number_of(event)), *gpu, "a stream waited for an event");
    if (found == nullptr || on == nullptr) return kInvalidHandle;
    const std::lock_guard lock(found->mutex);
    if (found->queue == nullptr || found->queue == on->queue) return kSuccess;
    on->queue->issue([queue = found->queue, operation = found->operation] { queue->wait_for(operation); });
    return kSuccess;
  });
}

Status shim_synchronize_event(Event event) {
  return gated(Fn::synchronize_event, [&](Gpu* gpu) -> Status {
    const auto found = of_gpu(State::get().events.find(number_of(event)), *gpu, "an event was waited for");
    if (found == nullptr) return kInvalidHandle;
    std::shared_ptr<Queue> queue;
    std::uint64_t operation = 0;
    {
      const std::lock_guard lock(found->mutex);
      queue = found->queue;
      operation = found->operation;
    }
    if (queue != nullptr) queue->wait_for(operation);
    return sticky_of(*gpu);
  });
}

Status shim_load_module(Module* module, const void* image) {
  return gated(Fn::load_module, [&](Gpu* gpu) -> Status {
    if (image == nullptr) return kInvalidValue;
    if (!is_image(image)) return device::cuda::kInvalidImage;
    const auto made = std::make_shared<ModuleObject>();
    made->gpu = gpu;
    *module = reinterpret_cast<Module>(State::get().modules.add(made));
    return kSuccess;
  });
}

Status shim_unload_module(Module module) {
  return gated(Fn::unload_module, [&](Gpu* gpu) -> Status {
    State& state = State::get();
    state.synchronize(*gpu);
    const auto found = of_gpu(state.modules.take(number_of(module)), *gpu, "a module was unloaded");
    if (found == nullptr) return kInvalidHandle;
    state.functions.drop_if([&](const FunctionObject& function) { return function.module == number_of(module); });
    return kSuccess;
  });
}

Status shim_find_function(Function* function, Module module, const char* name) {
  return gated(Fn::find_function, [&](Gpu* gpu) -> Status {
    State& state = State::get();
    if (of_gpu(state.modules.find(number_of(module)), *gpu, "a kernel was looked for in a module") == nullptr) {
      return kInvalidHandle;
    }
    if (!is_kernel(name)) return kNotFound;
    const auto made = std::make_shared<FunctionObject>();
    made->gpu = gpu;
    made->module = number_of(module);
    made->kernel = name;
    *function = reinterpret_cast<Function>(state.functions.add(made));
    return kSuccess;
  });
}

Status shim_launch(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream, void** parameters,
                   void** extra) {
  return gated(Fn::launch, [&](Gpu* gpu) -> Status {
    State& state = State::get();
    const std::shared_ptr<StreamObject> on = state.stream(*gpu, stream);
    const auto kernel = of_gpu(state.functions.find(number_of(function)), *gpu, "a kernel was launched");
    if (kernel == nullptr || on == nullptr) return kInvalidHandle;
    const bool is_flat = grid_x != 0 && grid_y == 1 && grid_z == 1 && block_y == 1 && block_z == 1;
    if (!is_flat || block_x != device::cuda::kBlockThreads || shared_bytes != 0 || extra != nullptr) {
      state.add_violation(fmt::format("{} was launched in another shape than it is made for", kernel->kernel));
      return kInvalidValue;
    }
    KernelLaunch launch{kernel->kernel, grid_x, {}};
    copy_parameters(parameters, launch);
    const bool is_transfer =
        launch.kernel == device::cuda::kMoveKernel || launch.kernel == device::cuda::kDequantizeKernel;
    const auto kind = is_transfer ? OperationKind::kTransfer : OperationKind::kOther;
    state.issue(*on, kind, [gpu, launch]() -> Outcome {
      std::vector<std::shared_ptr<Region>> used;  // few: each is looked up once
      const Reach reach = [&](Address address, std::uint64_t size_bytes) -> std::byte* {
        const auto holds_it = [&](const std::shared_ptr<Region>& region) {
          return holds(*region, address, size_bytes);
        };
        auto found = std::find_if(used.begin(), used.end(), holds_it);
        if (found == used.end()) {
          std::shared_ptr<Region> region = State::get().memory.find(gpu->ordinal, address, size_bytes);
          if (region == nullptr) return nullptr;
          found = used.insert(used.end(), std::move(region));
        }
        return (*found)->bytes + (address - (*found)->address);
      };
      std::uint64_t written_bytes = 0;
      const Outcome outcome = run_kernel(launch, reach, written_bytes);
      gpu->written_bytes += written_bytes;
      if (outcome.status != kSuccess) {
        State::get().add_violation(
            fmt::format("{} reached outside of the memory of GPU {}", launch.kernel, gpu->ordinal));
      }
      return outcome;
    });
    return kSuccess;
  });
}

}  // namespace lading::cuda_shim
