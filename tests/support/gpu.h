// For tests: the GPUs of this machine, or where there are none, the stand-in for the CUDA driver (tests/cuda_shim).
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "device/gpus.h"

namespace lading::test {

/// "cuda:0", …; empty if there is neither.
inline std::vector<std::string> gpus() {
  device::GpuSurvey survey = device::survey_gpus();
#ifdef LADING_CUDA_SHIM_PATH
  if (survey.gpus.empty()) {
    ::setenv("LADING_SHIM", "gpus=2", 0);
    ::setenv("LADING_LIBCUDA", LADING_CUDA_SHIM_PATH, 1);
    survey = device::survey_gpus();
  }
#endif
  std::vector<std::string> names;
  for (const device::GpuInfo& gpu : survey.gpus) names.push_back("cuda:" + std::to_string(gpu.index));
  return names;
}

}  // namespace lading::test
