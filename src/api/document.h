// Reads the JSON documents of a request, from files or from texts.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/json_reader.h"
#include "lading/document.h"
#include "lading/result.h"

namespace lading {

/// A model of a million tensors fits in. What is made of a document takes several times its size.
inline constexpr JsonLimits kDocumentJson{1'000'000, 2'000'000, Code::kSchema};

struct DocumentLimits {
  std::string_view what;  ///< "skeleton": for messages
  std::uint64_t max_bytes = 100'000'000;
  JsonLimits json = kDocumentJson;
};

/// A file is the user's word: links are followed. Errors name the file.
Result<JsonDocument, Errors> read_document(const Document& document, const DocumentLimits& limits);

/// What errors in it are told of: the path, or "skeleton (text)".
[[nodiscard]] std::string document_name(const Document& document, const DocumentLimits& limits);

}  // namespace lading
