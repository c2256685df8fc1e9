// Parts of `lading.skeleton/1` that other documents have too.
#pragma once

#include <string_view>

#include "base/json_writer.h"
#include "model/skeleton.h"

namespace lading::model {

/// "parameter": the word in JSON.
[[nodiscard]] std::string_view word(Kind kind);

/// One line: {"kind": "fill", "value": 0}
void write_recipe(JsonWriter& json, const Recipe& recipe);

}  // namespace lading::model
