// Answers of the C ABI: JSON texts of the schema lading.answer/1 (docs/schema/request.md). Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/gpus.h"
#include "lading/dtypes.h"
#include "lading/inspect.h"
#include "lading/load.h"
#include "lading/plan.h"
#include "lading/verify.h"

namespace lading::c_api {

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

[[nodiscard]] std::string answer_of(const RefusalAnswer& refusal, const Errors& problems);
[[nodiscard]] std::string answer_of(const Inspection& inspection);
[[nodiscard]] std::string answer_of(const PlanAnswer& planned);
[[nodiscard]] std::string answer_of(const LoadReport& report);
[[nodiscard]] std::string answer_of(const Owners& owners);
[[nodiscard]] std::string answer_of_contents(const std::string& contents);
[[nodiscard]] std::string answer_of(const Verification& verification, Exit exit_code);
[[nodiscard]] std::string answer_of(const DTypesReport& report);
[[nodiscard]] std::string answer_of(const AvailableMemory& available);
[[nodiscard]] std::string answer_of(const device::GpuSurvey& survey);

}  // namespace lading::c_api
