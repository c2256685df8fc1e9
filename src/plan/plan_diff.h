// What differs between two plans, from their JSON: a plan that was written before may come from another version.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json_reader.h"
#include "lading/result.h"

namespace lading::plan {

struct Change {
  std::string section;                ///< "plan", "file", "source", "tensor", "rank", "destination"
  std::string name;                   ///< of the file, the tensor, …; "" in section "plan"
  std::string field;                  ///< "" where all of it is new or gone
  std::optional<std::string> before;  ///< JSON text; nothing: was not there
  std::optional<std::string> after;
};

struct PlanDiff {
  std::vector<Change> changes;
  std::vector<std::uint64_t> ranks_not_compared;  ///< that only one of the plans has; no difference
};

/// Both `lading.plan/1`. Sentences, warnings and the digest are not compared: they follow from the rest.
Result<PlanDiff, Errors> diff_plans(const JsonDocument& before, const JsonDocument& after);

}  // namespace lading::plan
