// For tests: a tensor as inspect tells it, of which only name, size and dtype matter.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "lading/inspect.h"

namespace lading::cli {

inline TensorInfo tensor(std::string name, std::uint64_t bytes = 4, std::string dtype = "F32") {
  TensorInfo info;
  info.name = std::move(name);
  info.dtype_name = std::move(dtype);
  info.shape = Shape{bytes / 4};
  info.bytes = {100, 100 + bytes};
  return info;
}

}  // namespace lading::cli
