// Parts of `lading.skeleton/1` that other documents have too.
#pragma once

#include <optional>
#include <string_view>

#include "base/json_fields.h"
#include "base/json_writer.h"
#include "model/skeleton.h"

namespace lading::model {

/// One line: {"kind": "fill", "value": 0}
void write_recipe(JsonWriter& json, const Recipe& recipe);

/// Nothing if the field is not there. What the recipe says is not checked: make_skeleton() does that.
std::optional<Recipe> read_recipe(JsonFields& owner, std::string_view key, Errors& errors);

}  // namespace lading::model
