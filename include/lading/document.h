// Skeletons, layouts, mappings and policies as JSON documents (docs/schema).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "lading/export.h"
#include "lading/layout.h"
#include "lading/mapping.h"
#include "lading/policy.h"
#include "lading/result.h"
#include "lading/skeleton.h"

namespace lading {

/// A JSON document: a file that holds it, or the text itself.
struct Document {
  enum class From : std::uint8_t { kFile, kText };
  From from = From::kFile;
  std::string value = {};

  static Document file(std::string path) { return {From::kFile, std::move(path)}; }
  static Document text(std::string json) { return {From::kText, std::move(json)}; }
};

/// A value, or a document that describes it.
template <class T>
using Given = std::variant<Document, T>;

/// Every problem of the document is in the error.
LADING_API Result<model::Skeleton, Errors> read_skeleton(const Document& document);
LADING_API Result<layout::Layout, Errors> read_layout(const Document& document);
LADING_API Result<mapping::Mapping, Errors> read_mapping(const Document& document);
LADING_API Result<policy::Policy, Errors> read_policy(const Document& document);

/// Returns the document of the value; reading it gives the value back. A layout is checked first: cuts name axes of the
/// mesh.
LADING_API std::string to_json(const model::Skeleton& skeleton);
LADING_API Result<std::string, Errors> to_json(const layout::Layout& layout);
LADING_API std::string to_json(const mapping::Mapping& mapping);
LADING_API std::string to_json(const policy::Policy& policy);

}  // namespace lading
