// Explanations of a plan, and differences between two plans.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lading/export.h"

namespace lading {

/// Names of the whole model's tensors, each list sorted: what a person must know of a load that succeeds.
struct KeyReport {
  std::vector<std::string> missing;      ///< expected in a file, and in none
  std::vector<std::string> mismatched;   ///< in a file, in another shape (allow_mismatch)
  std::vector<std::string> initialized;  ///< could be in a file, and get a value that is made
  std::uint64_t dequantized = 0;         ///< keys of payloads that are multiplied by their scales
};

struct ExplainedFact {
  std::string topic;  ///< "value", "source", "dtype", "placement", …: one word, stable
  std::string text;   ///< a sentence, whose wording may change; names in it are escaped
};

enum class PlanSection : std::uint8_t { kPlan, kFile, kSource, kTensor, kRank, kDestination };

/// "plan", "file", "source", "tensor", "rank", "destination"
[[nodiscard]] LADING_API std::string_view word(PlanSection section);

struct PlanChange {
  PlanSection section = PlanSection::kPlan;
  std::string name;                   ///< of the file, the tensor, …; "" in section kPlan
  std::string field;                  ///< "" where all of it is new or gone
  std::optional<std::string> before;  ///< JSON text; nothing: was not there
  std::optional<std::string> after;
};

struct PlanDifference {
  std::vector<PlanChange> changes;
  std::vector<std::uint64_t> ranks_not_compared;  ///< in only one of the plans; not counted as a difference
};

}  // namespace lading
