// How much memory of a device this process can still have.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lading/result.h"

namespace lading::exec {

struct FreeMemory {
  std::optional<std::uint64_t> bytes;  ///< nothing: it cannot be found out
  std::string limit;                   ///< what sets it: "the machine's free memory", "the free memory of cuda:0", …
};

/// `device`: "cpu", "cuda:1"
Result<FreeMemory> available_memory(const std::string& device);

/// An error says how many bytes the device has, and what sets the limit (R64).
Result<void> check_memory(const std::string& device, std::uint64_t needed_bytes);

}  // namespace lading::exec
