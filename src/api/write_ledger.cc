#include "api/write_ledger.h"

#include <algorithm>
#include <string_view>

#include "api/read_ledger.h"
#include "io/write_file.h"

namespace lading {
namespace {

constexpr std::string_view kSchemaName = "lading.ledger/";

bool is_ledger_schema(std::string_view text) {
  if (!text.starts_with(kSchemaName)) return false;
  const std::string_view version = text.substr(kSchemaName.size());
  return !version.empty() && std::all_of(version.begin(), version.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool holds_ledger(const std::string& path) {
  const auto document = read_document(Document::file(path), kLedgerLimits);
  if (!document) return false;
  const auto schema = document->root().find("schema");
  return schema && schema->is_string() && is_ledger_schema(schema->text());
}

Error with_remedy(Error error) {
  if (!error.remedy.empty()) return error;
  return std::move(error).try_this(
      "Pass the path of a new file, or of an older ledger, in a folder that you can write to.");
}

}  // namespace

Result<void> check_ledger_place(const std::string& path) {
  const auto standing = io::what_stands_at(path);
  if (!standing) return fail(with_remedy(standing.error()));
  if (*standing == io::Standing::kRegularFile && !holds_ledger(path)) {
    return fail(with_remedy(Error(Code::kWriteFailed, "the file exists, and is not a ledger").in_file(path)));
  }
  return {};
}

Result<void> write_ledger(const std::string& path, const std::string& text) {
  LADING_TRY(check_ledger_place(path));
  auto written = io::write_file(path, text, {io::Overwrite::kRegularFile});
  if (!written) return fail(with_remedy(std::move(written).error()));
  return {};
}

}  // namespace lading
