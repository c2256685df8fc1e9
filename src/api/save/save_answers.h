// Answers of the steps of a save, and of a conversion, as JSON texts (docs/schema/request.md). Pure.
#pragma once

#include <string>
#include <vector>

#include "lading/convert.h"
#include "lading/save.h"

namespace lading {

[[nodiscard]] std::string answer_of(const SavePlanReport& plan, const std::vector<DestinationInfo>& destinations,
                                    double planning_seconds);
[[nodiscard]] std::string answer_of(const PreparedSave& prepared);
[[nodiscard]] std::string answer_of(const SaveShareReport& share);
[[nodiscard]] std::string answer_of(const FinishedSave& finished);
/// docs/schema/convert.md
[[nodiscard]] std::string answer_of(const ConvertReport& report, const SavePlace& place);
[[nodiscard]] std::string answer_of_commit(const SavePlace& place, bool replaced);
[[nodiscard]] std::string answer_of_discard(bool removed);

}  // namespace lading
