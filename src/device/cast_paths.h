// The instruction sets that this machine can run casts on, for tests and measurements. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <hwy/highway.h>

namespace lading::device {

struct CastPath {
  std::int64_t target;  ///< Highway's number
  std::string name;
};

/// Best first; the last is the baseline that every machine of this architecture has.
inline std::vector<CastPath> cast_paths() {
  std::vector<std::int64_t> targets = hwy::SupportedAndGeneratedTargets();
  if (std::find(targets.begin(), targets.end(), HWY_STATIC_TARGET) == targets.end()) {
    targets.push_back(HWY_STATIC_TARGET);
  }
  std::vector<CastPath> paths;
  for (const std::int64_t target : targets) paths.push_back({target, hwy::TargetName(target)});
  return paths;
}

/// From now on find_cast() gives the casts of this path. Casts found earlier stay what they are.
inline void use_cast_path(const CastPath& path) { hwy::GetChosenTarget().Update(path.target); }

/// find_cast() picks the best path again.
inline void use_best_cast_path() { hwy::GetChosenTarget().DeInit(); }

}  // namespace lading::device
