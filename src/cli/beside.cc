#include "cli/beside.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/text.h"
#include "cli/style.h"

namespace lading::cli {

std::optional<std::string> file_beside(const std::optional<Document>& skeleton, std::string_view suffix) {
  if (!skeleton || skeleton->from != Document::From::kFile) return std::nullopt;
  std::string_view stem = skeleton->value;
  if (stem.ends_with(".json")) stem.remove_suffix(5);
  std::string path = fmt::format("{}{}", stem, suffix);
  std::error_code ignored;  // a link that leads nowhere counts: opening it says so
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, ignored))) return std::nullopt;
  return path;
}

std::optional<Document> document_or_beside(const std::optional<Document>& named,
                                           const std::optional<Document>& skeleton, std::string_view what,
                                           Output& output) {
  if (named) return named;
  const auto path = file_beside(skeleton, fmt::format(".{}.json", what));
  if (!path) return std::nullopt;
  output.err += fmt::format("{} using the {} {}, found beside the skeleton\n", Style(output.err_colour).yellow("note:"),
                            what, quote(*path));
  return Document::file(*path);
}

}  // namespace lading::cli
