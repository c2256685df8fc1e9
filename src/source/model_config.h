// The config.json beside a checkpoint's files. Only what it says of quantization is read; it decides nothing else here.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json_reader.h"
#include "checkpoint/catalog.h"
#include "io/anchor.h"
#include "lading/result.h"

namespace lading::source {

/// The text with zeros in the place of numbers that Python writes and JSON does not have, such as NaN, and otherwise as
/// it was: every other byte keeps its place.
[[nodiscard]] std::string with_numbers_of_json(std::string_view text);

/// Pure. Of a document that says nothing of quantization: nothing.
[[nodiscard]] Result<std::optional<checkpoint::Quantization>, Errors> parse_model_config(const JsonBuffer& buffer);

struct ModelConfig {
  std::optional<checkpoint::Quantization> quantization;
  Errors warnings;  ///< of a file that cannot be read, or is no JSON: it is not looked at
};

/// `directory` is relative to the anchor. Without the file: nothing.
[[nodiscard]] ModelConfig read_model_config(const io::Anchor& anchor, const std::string& directory);

}  // namespace lading::source
