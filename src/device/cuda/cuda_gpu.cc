#include "device/cuda/cuda_gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "device/cuda/kernel_images.h"
#include "device/cuda/kernel_jobs.h"

namespace lading::device::cuda {
namespace {

// What a context survives: a refused argument, no memory, an image for another GPU, memory that was pinned already, a
// stream that is being captured. Everything else ends it.
constexpr std::array kSurvivable = {kSuccess,           kInvalidValue,  kOutOfMemory,    kInvalidImage,
                                    kNoBinaryForGpu,    kInvalidPtx,    kUnsupportedPtx, kOperatingSystem,
                                    kAlreadyRegistered, kNotRegistered, kNotSupported};

bool is_of_image(Status status) {
  return status == kInvalidImage || status == kNoBinaryForGpu || status == kInvalidPtx || status == kUnsupportedPtx;
}

}  // namespace

bool runs_on(unsigned image_sm, int major, int minor) {
  return image_sm / 10 == static_cast<unsigned>(major) && image_sm % 10 <= static_cast<unsigned>(minor);
}

Result<std::shared_ptr<Gpu>> Gpu::open(int index) {
  LADING_ASSIGN_OR_RETURN(const Driver driver, Driver::find());
  int count = 0;
  if (const Status status = driver.device_count(&count); status != kSuccess) {
    return fail(driver.error(status, "counting GPUs failed"));
  }
  if (index < 0 || index >= count) {
    return fail(Error(Code::kNoDevice, fmt::format("cuda:{} does not exist", index))
                    .by_rule("R34")
                    .wanted(fmt::format("an index below {}", count))
                    .got(std::to_string(index))
                    .try_this("Check nvidia-smi, CUDA_VISIBLE_DEVICES, and the layout's devices."));
  }
  LADING_ASSIGN_OR_RETURN(std::shared_ptr<Gpu> gpu, in_use(driver, index));
  // Destinations may still be written or read by what the caller has issued on streams of its own.
  LADING_TRY(gpu->call("waiting for running work", gpu->driver_.synchronize_context));
  return gpu;
}

Result<std::shared_ptr<Gpu>> Gpu::in_use(const Driver& driver, int index) {
  static std::mutex mutex;
  static std::map<int, std::weak_ptr<Gpu>> known;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Gpu> gpu = known[index].lock();
  if (gpu != nullptr) return gpu;
  gpu.reset(new Gpu(driver, index));
  LADING_TRY(gpu->start());
  known[index] = gpu;
  return gpu;
}

Result<void> Gpu::start() {
  if (const Status status = driver_.device_get(&device_, index_); status != kSuccess) {
    return fail(driver_.error(status, name() + ": looking it up failed"));
  }
  Context context = nullptr;
  if (const Status status = driver_.retain_context(&context, device_); status != kSuccess) {
    Error error = driver_.error(status, name() + ": taking its primary context failed");
    if (status == kOutOfMemory) error.code = Code::kDeviceMemory;
    if (error.remedy.empty())
      error.remedy = "Check nvidia-smi: the GPU may be in exclusive mode, out of memory, or in error.";
    return fail(std::move(error));
  }
  context_ = context;
  return load_kernels();
}

Result<void> Gpu::load_kernels() {
  int major = 0;
  int minor = 0;
  LADING_TRY(
      call("asking for its compute capability", driver_.device_attribute, &major, kComputeCapabilityMajor, device_));
  LADING_TRY(
      call("asking for its compute capability", driver_.device_attribute, &minor, kComputeCapabilityMinor, device_));
  std::vector<KernelImage> images;
  for (const KernelImage& image : kernel_images()) {
    if (image.sm == 0 || runs_on(image.sm, major, minor)) images.push_back(image);
  }
  // The nearest machine code first, and PTX, which the driver compiles, if nothing else runs.
  std::sort(images.begin(), images.end(), [](const KernelImage& a, const KernelImage& b) { return a.sm > b.sm; });
  Status status = kNoBinaryForGpu;
  for (const KernelImage& image : images) {
    status = call_freely(driver_.load_module, &module_, static_cast<const void*>(image.bytes.data()));
    if (status == kSuccess && image.sm == 0) {
      add_note(fmt::format("{} (compute capability {}.{}): the driver compiles the kernels at the first load", name(),
                           major, minor));
    }
    if (!is_of_image(status)) break;
  }
  if (images.empty()) {
    return fail(Error(Code::kNoDevice, "this build of lading has no GPU kernels")
                    .try_this("Build lading with clang and LADING_WITH_CUDA_KERNELS=ON."));
  }
  LADING_TRY(judge("loading the kernels", status));
  LADING_TRY(call("finding a kernel", driver_.find_function, &move_, module_, kMoveKernel));
  LADING_TRY(call("finding a kernel", driver_.find_function, &dequantize_, module_, kDequantizeKernel));
  LADING_TRY(call("finding a kernel", driver_.find_function, &digest_, module_, kDigestKernel));
  LADING_TRY(call("finding a kernel", driver_.find_function, &fill_, module_, kFillKernel));
  return call("finding a kernel", driver_.find_function, &sample_, module_, kSampleKernel);
}

thread_local Gpu* Gpu::attached_ = nullptr;

void Gpu::attach() {
  if (is_lost() || attached_ != nullptr || driver_.push_context(context_) != kSuccess) return;
  attached_ = this;
}

void Gpu::detach() {
  if (attached_ != this) return;
  attached_ = nullptr;
  Context ours = nullptr;
  driver_.pop_context(&ours);
}

Gpu::~Gpu() {
  if (context_ == nullptr || is_lost()) return;
  if (module_ != nullptr) call_freely(driver_.unload_module, module_);
  driver_.release_context(device_);
}

std::string Gpu::name() const { return fmt::format("cuda:{}", index_); }

Status Gpu::note_status(Status status) {
  const bool is_survivable = std::find(kSurvivable.begin(), kSurvivable.end(), status) != kSurvivable.end();
  return is_survivable ? status : lose(status);
}

Status Gpu::lose(Status status) {
  last_status_ = status;
  is_lost_ = true;
  return status;
}

Result<void> Gpu::judge(std::string_view doing, Status status) const {
  if (status == kSuccess) return {};
  Error error = driver_.error(status, fmt::format("{}: {} failed", name(), doing));
  if (status == kOutOfMemory) error.code = Code::kDeviceMemory;
  if (is_lost() && status != kNotInitialized) {
    error.remedy = "Restart the process, because the GPU's context is lost, and check nvidia-smi and dmesg (Xid).";
  }
  return fail(std::move(error));
}

Error Gpu::short_of(std::uint64_t wanted_bytes, std::uint64_t free_bytes) const {
  const std::uint64_t short_bytes = wanted_bytes > free_bytes ? wanted_bytes - free_bytes : 0;
  return Error(Code::kDeviceMemory,
               fmt::format("{} has too little memory free, {} bytes short; nothing was written", name(), short_bytes))
      .by_rule("R64")
      .wanted(fmt::format("{} bytes", wanted_bytes))
      .got(fmt::format("{} bytes free", free_bytes))
      .try_this("Free device memory, shard the model over more GPUs, or request a narrower dtype.");
}

void Gpu::add_note(std::string note) {
  const std::lock_guard lock(notes_mutex_);
  if (std::find(notes_.begin(), notes_.end(), note) == notes_.end()) notes_.push_back(std::move(note));
}

std::vector<std::string> Gpu::notes() {
  const std::lock_guard lock(notes_mutex_);
  return notes_;
}

}  // namespace lading::device::cuda
