#include "cli/beside.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/text.h"
#include "cli/style.h"

namespace lading::cli {

std::optional<std::string> file_beside(const std::optional<PlanDocument>& skeleton, std::string_view suffix) {
  if (!skeleton || skeleton->from != PlanDocument::From::kFile) return std::nullopt;
  std::string_view stem = skeleton->value;
  if (stem.ends_with(".json")) stem.remove_suffix(5);
  std::string path = fmt::format("{}{}", stem, suffix);
  std::error_code ignored;  // a link that leads nowhere counts: opening it says so
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, ignored))) return std::nullopt;
  return path;
}

PlanRequest with_documents_beside(PlanRequest request, Output& output) {
  const auto take = [&](std::optional<PlanDocument>& document, std::string_view suffix, std::string_view what) {
    if (document) return;
    const auto path = file_beside(request.skeleton, suffix);
    if (!path) return;
    output.err += fmt::format("{} the {} is {}, which is beside the skeleton\n",
                              Style(output.err_colour).yellow("note:"), what, quote(*path));
    document = PlanDocument::file(*path);
  };
  take(request.mapping, ".mapping.json", "mapping");
  take(request.policy, ".policy.json", "policy");
  return request;
}

}  // namespace lading::cli
