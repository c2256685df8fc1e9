// OwnMemory: the destinations' memory where the caller brings none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lading/result.h"
#include "plan/plan.h"

namespace lading::exec {

/// One stretch per device, so that huge pages are well used.
class OwnMemory {
 public:
  /// For all destinations of all ranks of the plan. Refuses before anything is allocated on the host if it has too
  /// little, the least staging memory that the load needs included.
  Result<void> allocate(const plan::Plan& plan);

  /// By rank of the plan and destination, in order; valid as long as this is.
  [[nodiscard]] const std::vector<std::span<std::byte>>& destinations() const { return destinations_; }

 private:
  std::vector<std::span<std::byte>> destinations_;
  std::map<std::string, std::shared_ptr<std::byte>> stretches_;  // by device
};

}  // namespace lading::exec
