// What `lading skeleton -o FILE` writes beside a skeleton document: "model.json" has "model.mapping.json",
// "model.policy.json" and "model.values.safetensors", each only if the model needs it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cli/command.h"
#include "lading/document.h"

namespace lading::cli {

/// Nothing if there is no such file, or no skeleton that is a file.
std::optional<std::string> file_beside(const std::optional<Document>& skeleton, std::string_view suffix);

/// The document that is named, or else the one beside the skeleton: `what` is "mapping" or "policy". Says so.
std::optional<Document> document_or_beside(const std::optional<Document>& named,
                                           const std::optional<Document>& skeleton, std::string_view what,
                                           Output& output);

}  // namespace lading::cli
