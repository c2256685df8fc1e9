#include "device/gpus.h"

#include <algorithm>
#include <array>

#include "device/cuda/cuda_gpu.h"
#include "device/cuda/kernel_images.h"

namespace lading::device {
namespace {

using cuda::Driver;
using cuda::kSuccess;

bool has_machine_code(int major, int minor) {
  const auto images = cuda::kernel_images();
  return std::any_of(images.begin(), images.end(), [&](const cuda::KernelImage& image) {
    return image.sm != 0 && cuda::runs_on(image.sm, major, minor);
  });
}

// Free memory is known only inside a context; a GPU that gives none has none to offer.
std::uint64_t free_bytes_of(const Driver& driver, cuda::Ordinal device) {
  cuda::Context context = nullptr;
  if (driver.retain_context(&context, device) != kSuccess) return 0;
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (driver.push_context(context) == kSuccess) {
    if (driver.memory_info(&free_bytes, &total_bytes) != kSuccess) free_bytes = 0;
    driver.pop_context(&context);
  }
  driver.release_context(device);
  return free_bytes;
}

GpuInfo look_at(const Driver& driver, int index) {
  GpuInfo info;
  info.index = static_cast<unsigned>(index);
  cuda::Ordinal device = 0;
  if (driver.device_get(&device, index) != kSuccess) return info;
  std::array<char, 256> name = {};
  if (driver.device_name(name.data(), static_cast<int>(name.size()) - 1, device) == kSuccess) info.name = name.data();
  int major = 0;
  int minor = 0;
  if (driver.device_attribute(&major, cuda::kComputeCapabilityMajor, device) != kSuccess) major = 0;
  if (driver.device_attribute(&minor, cuda::kComputeCapabilityMinor, device) != kSuccess) minor = 0;
  info.sm = static_cast<unsigned>(10 * major + minor);
  std::size_t total_bytes = 0;
  if (driver.device_total_memory(&total_bytes, device) == kSuccess) info.total_bytes = total_bytes;
  info.free_bytes = free_bytes_of(driver, device);
  info.has_machine_code = has_machine_code(major, minor);
  return info;
}

}  // namespace

GpuSurvey survey_gpus() {
  GpuSurvey survey;
  const auto driver = Driver::find();
  if (!driver) {
    survey.why_none = driver.error().message;
    return survey;
  }
  survey.driver = driver->version_text();
  int count = 0;
  if (driver->device_count(&count) != kSuccess) count = 0;
  for (int i = 0; i < count; ++i) survey.gpus.push_back(look_at(*driver, i));
  if (survey.gpus.empty()) survey.why_none = "the CUDA driver sees no GPU";
  return survey;
}

}  // namespace lading::device
