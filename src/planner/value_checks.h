// Whether a dtype can hold the constants and the random values that a plan writes. Rounding to the nearest
// value of a floating dtype is fine; becoming infinite, or another number, is not.
#pragma once

#include <optional>

#include "lading/result.h"
#include "planner/plan_types.h"

namespace lading::planner {

[[nodiscard]] bool can_hold(DType dtype, double value);

/// A fill with NaN is the same as another one.
[[nodiscard]] bool is_same_recipe(model::Recipe one, model::Recipe other);
[[nodiscard]] Provenance provenance_of(model::RecipeKind kind);

/// What the statement's storage dtype cannot hold: of its recipe (R19, R20), or a pad of its expressions.
[[nodiscard]] std::optional<Error> find_value_problem(const Statement& statement);

}  // namespace lading::planner
