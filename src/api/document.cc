#include "api/document.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "io/anchor.h"

namespace lading {
namespace {

namespace fs = std::filesystem;

Result<JsonBuffer> read_file(const std::string& path, const DocumentLimits& limits) {
  std::error_code error;
  const fs::path place = fs::canonical(path, error);
  if (error) {
    return fail(
        Error(Code::kNotFound, fmt::format("the {} cannot be found: {}", limits.what, error.message())).in_file(path));
  }
  LADING_ASSIGN_OR_RETURN(const io::Anchor anchor, io::Anchor::open(place.parent_path().string()));
  LADING_ASSIGN_OR_RETURN(const io::File file, anchor.open_file(place.filename().string()));
  if (file.size_bytes() > limits.max_bytes) {
    return fail(Error(Code::kSchema, fmt::format("the {} is too large", limits.what))
                    .in_file(path)
                    .wanted(fmt::format("at most {} bytes", limits.max_bytes))
                    .got(fmt::format("{} bytes", file.size_bytes())));
  }
  JsonBuffer buffer(static_cast<std::size_t>(file.size_bytes()));
  LADING_TRY(file.read_exact(0, {buffer.data(), static_cast<std::size_t>(file.size_bytes())}));
  LADING_TRY(file.check_unchanged());
  return buffer;
}

}  // namespace

std::string document_name(const Document& document, const DocumentLimits& limits) {
  return document.from == Document::From::kFile ? document.value : fmt::format("{} (text)", limits.what);
}

Result<JsonDocument, Errors> read_document(const Document& document, const DocumentLimits& limits) {
  const auto parse = [&](JsonBuffer buffer) -> Result<JsonDocument, Errors> {
    auto parsed = JsonDocument::parse(std::move(buffer), limits.json);
    if (!parsed) parsed.error().relocate(document_name(document, limits), 0);
    return parsed;
  };
  if (document.from == Document::From::kText) return parse(JsonBuffer::copy_of(document.value));
  auto buffer = read_file(document.value, limits);
  if (!buffer) return fail(Errors(std::move(buffer).error()));
  return parse(*std::move(buffer));
}

}  // namespace lading
