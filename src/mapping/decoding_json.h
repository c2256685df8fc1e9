// The members of `dequantize` that say how codes become numbers (docs/schema/mapping.md), and what is wrong with them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json_fields.h"
#include "base/json_writer.h"
#include "lading/decoding.h"
#include "lading/mapping.h"

namespace lading::mapping {

struct DecodingProblem {
  std::string_view member;
  std::string message;
  std::string expected;
};

/// All of them; of a `dequantize` that a document or a program made.
std::vector<DecodingProblem> decoding_problems(const ExpressionTemplate& leaf);

/// All members but the keys, which the leaf must have by now. What is wrong is added to the errors of `fields`.
void read_decoding(JsonFields& fields, ExpressionTemplate& leaf);

/// What writes the members, keys included. Nothing for a decoding that only has scales.
struct DecodingText {
  const Decoding& decoding;
  std::string_view zeros;         ///< as the document names the key, or ""
  std::string_view tensor_scale;  ///< likewise
  std::string_view groups;        ///< likewise
};
void write_decoding(JsonWriter& json, const DecodingText& text);

}  // namespace lading::mapping
