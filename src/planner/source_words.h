// Words of decide_sources.
#pragma once

#include <string_view>

#include "lading/provenance.h"
#include "model/skeleton.h"

namespace lading::planner {

/// "non-persistent buffer": in a sentence.
[[nodiscard]] std::string_view describe(model::Kind kind);
/// Of a value that is made so.
[[nodiscard]] Provenance provenance_of(model::RecipeKind kind);
/// Whether two recipes make the same value; a fill with NaN is the same as another one.
[[nodiscard]] bool is_same(model::Recipe one, model::Recipe other);

}  // namespace lading::planner
