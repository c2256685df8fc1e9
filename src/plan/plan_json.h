// Parts of `lading.plan/1` that other documents have too.
#pragma once

#include "base/json_writer.h"
#include "plan/plan.h"

namespace lading::plan {

/// In the form of docs/schema/mapping.md; keys are keys here, never templates. mapping/template.h reads it back.
void write_expression(JsonWriter& json, const mapping::Expression& e);

/// {"device": "rank", "slots": [{"name": "", "cuts": […]}]}
void write_placement(JsonWriter& json, const layout::Placement& placement, const layout::Mesh& mesh);

/// Whether a statement of this provenance is made by its recipe.
[[nodiscard]] bool has_recipe(Provenance provenance);

}  // namespace lading::plan
