// Answers as JSON texts, for the command line and for the C ABI: one document for one answer (docs/schema). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lading/dtypes.h"
#include "lading/help.h"
#include "lading/inspect.h"
#include "lading/load.h"
#include "lading/plan.h"
#include "lading/verify.h"

namespace lading {

namespace device {
struct GpuSurvey;
}

/// What there is instead of an answer.
struct RefusalAnswer {
  std::string_view kind;       ///< of the answer that there would have been: "plan"
  std::optional<Stage> stage;  ///< nothing: it was planned, and the load failed
  bool begun = false;          ///< destinations are incomplete
  Exit exit_code = Exit::kInternal;
};

struct PlanAnswer {
  const PlanReport& plan;
  const std::vector<DestinationInfo>& destinations;
  double planning_seconds = 0;
};

enum class ListTensors : std::uint8_t { kNo, kYes };

struct LoadAnswer {
  const LoadReport& report;
  bool has_digests = false;                            ///< of each destination, in the plan's order
  std::optional<std::uint64_t> group_read_bytes = {};  ///< by all processes of the load, if there are several
};

[[nodiscard]] std::string answer_of(const RefusalAnswer& refusal, const Errors& problems);
/// docs/schema/inspect.md
[[nodiscard]] std::string answer_of(const Inspection& inspection, ListTensors list);
/// docs/schema/load.md
[[nodiscard]] std::string answer_of(const LoadAnswer& load);
/// docs/schema/verify.md
[[nodiscard]] std::string answer_of(const Verification& verification);

/// docs/schema/help.md
[[nodiscard]] std::string answer_of_help(const std::vector<HelpTopic>& topics, const std::string& text);

/// docs/schema/request.md
[[nodiscard]] std::string answer_of(const PlanAnswer& planned);
[[nodiscard]] std::string answer_of(const ExchangeChoice& choice, const Owners& owners);
[[nodiscard]] std::string answer_of_speed(double bytes_per_second);
[[nodiscard]] std::string answer_of_contents(const std::string& contents);
[[nodiscard]] std::string answer_of_digest(const std::string& digest);
[[nodiscard]] std::string answer_of(const DTypesReport& report);
[[nodiscard]] std::string answer_of(const AvailableMemory& available);
[[nodiscard]] std::string answer_of(const device::GpuSurvey& survey);

}  // namespace lading
