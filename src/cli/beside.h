// What `lading skeleton -o FILE` writes beside a skeleton document: "model.json" has "model.mapping.json",
// "model.policy.json" and "model.values.safetensors", each only if the model needs it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cli/command.h"
#include "lading/plan.h"

namespace lading::cli {

/// Nothing if there is no such file, or no skeleton that is a file.
std::optional<std::string> file_beside(const std::optional<PlanDocument>& skeleton, std::string_view suffix);

/// The request with the mapping and the policy beside its skeleton, where none is named. Says so.
PlanRequest with_documents_beside(PlanRequest request, Output& output);

}  // namespace lading::cli
