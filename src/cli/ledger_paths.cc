#include "cli/ledger_paths.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

namespace lading::cli {

Result<std::vector<Document>, Errors> ledgers_at(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return std::vector<Document>{Document::file(path)};
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    if (entry.path().extension() == ".json") paths.push_back(entry.path().string());
  }
  if (error) return fail(Errors(Error(Code::kOpenFailed, error.message()).in_file(path)));
  if (paths.empty()) {
    return fail(Errors(Error(Code::kNotFound, "the directory has no ledger")
                           .in_file(path)
                           .wanted("one file ending in .json for each process of the load")
                           .try_this("Write them with load --ledger DIR/ledger.json.")));
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Document> documents;
  documents.reserve(paths.size());
  for (std::string& one : paths) documents.push_back(Document::file(std::move(one)));
  return documents;
}

}  // namespace lading::cli
