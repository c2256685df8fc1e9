#include <fmt/format.h>

#include <charconv>

#include "base/text.h"
#include "device/cuda/cuda_device.h"
#include "device/device.h"

namespace lading::device {

Result<std::unique_ptr<Device>> open_device(std::string_view name) {
  if (name == "cpu") return host_device();
  constexpr std::string_view kCuda = "cuda:";
  if (name.starts_with(kCuda)) {
    const std::string_view digits = name.substr(kCuda.size());
    int index = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (error == std::errc() && end == digits.data() + digits.size() && index >= 0) return cuda::open_gpu(index);
  }
  return fail(Error(Code::kNoDevice, "the device is not supported")
                  .by_rule("R34")
                  .wanted("cpu, or cuda:0, cuda:1, …")
                  .got(quote(name))
                  .try_this("Use the CPU or a CUDA GPU."));
}

}  // namespace lading::device
