// The GPUs of this machine, for whoever wants to know before a load: `lading doctor`.
//
// Looking changes nothing and fails nothing: where no GPU can be used, the survey says why. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lading::device {

struct GpuInfo {
  unsigned index = 0;  ///< 0 is "cuda:0"
  std::string name;    ///< as the driver gives it: data, to be escaped where it is shown
  unsigned sm = 0;     ///< compute capability: 90 is 9.0
  std::uint64_t total_bytes = 0;
  std::uint64_t free_bytes = 0;
  bool has_machine_code = false;  ///< of our kernels; otherwise the driver compiles them at first use
};

struct GpuSurvey {
  std::string driver;         ///< the driver's CUDA version: "13.0"; empty: none was found
  std::string why_none;       ///< why there is no usable GPU; empty if there is one
  std::vector<GpuInfo> gpus;  ///< by index
};

[[nodiscard]] GpuSurvey survey_gpus();

}  // namespace lading::device
