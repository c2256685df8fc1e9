// Requests of the C ABI: JSON texts of schema lading.request/1 → requests of the C++ API (docs/schema/request.md).
//
// Each function takes the fields that mean something to it and refuses the others by name. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lading/dtypes.h"
#include "lading/inspect.h"
#include "lading/load.h"
#include "lading/result.h"
#include "lading/save.h"
#include "lading/verify.h"

namespace lading::c_api {

struct InspectRequest {
  CheckpointRef checkpoint;
  HashCheck hash = HashCheck::kSkip;
};

[[nodiscard]] Result<InspectRequest, Errors> parse_inspect_request(std::string_view json);
/// Of a plan, and of how it shall be loaded.
[[nodiscard]] Result<LoadRequest, Errors> parse_load_request(std::string_view json);
[[nodiscard]] Result<DTypesRequest, Errors> parse_dtypes_request(std::string_view json);
[[nodiscard]] Result<ExchangeFacts, Errors> parse_owners_request(std::string_view json);
[[nodiscard]] Result<VerifyRequest, Errors> parse_verify_request(std::string_view json);

/// Of lading_save_plan().
struct SavePlanRequest {
  SaveRequest save;
  std::uint32_t threads = 0;
};
[[nodiscard]] Result<SavePlanRequest, Errors> parse_save_plan_request(std::string_view json);

/// Of the steps of a save.
struct SaveStepRequest {
  SavePlace place;
  std::string temporary;  ///< "" before the first step
  std::optional<std::uint32_t> threads;
  SavedFrom from = SavedFrom::kDevices;
};
[[nodiscard]] Result<SaveStepRequest, Errors> parse_save_step_request(std::string_view json);

}  // namespace lading::c_api
