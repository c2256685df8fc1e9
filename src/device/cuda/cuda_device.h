// A GPU as a device. Thread-safe; its lanes are independent of each other.
#pragma once

#include <memory>

#include "device/device.h"

namespace lading::device::cuda {

/// As the process numbers them.
[[nodiscard]] Result<std::unique_ptr<Device>> open_gpu(int index);

}  // namespace lading::device::cuda
