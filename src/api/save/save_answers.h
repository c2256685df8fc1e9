// Answers of the steps of a save as JSON texts (docs/schema/request.md). Pure.
#pragma once

#include <string>
#include <vector>

#include "lading/save.h"

namespace lading {

[[nodiscard]] std::string answer_of(const SavePlanReport& plan, const std::vector<DestinationInfo>& destinations,
                                    double planning_seconds);
[[nodiscard]] std::string answer_of(const PreparedSave& prepared);
[[nodiscard]] std::string answer_of(const SaveShareReport& share);
[[nodiscard]] std::string answer_of(const FinishedSave& finished);
[[nodiscard]] std::string answer_of_commit(const SavePlace& place, bool replaced);
[[nodiscard]] std::string answer_of_discard(bool removed);

}  // namespace lading
