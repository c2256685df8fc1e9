// For tests and measurements: the same call on each instruction set that this machine has. Not thread-safe.
#pragma once

#include <hwy/targets.h>

#include <cstdint>

namespace lading::device {

/// Calls `call(name)` once for each, from the best to the plainest; afterwards the best is used again.
template <class F>
void for_each_target(F&& call) {
  const auto use = [](std::int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  };
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    use(target);
    call(hwy::TargetName(target));
  }
  use(0);
}

}  // namespace lading::device
