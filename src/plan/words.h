// A plan's words, the same in JSON and in explanations.
#pragma once

#include <string>
#include <string_view>

#include "layout/layout.h"
#include "plan/plan.h"

namespace lading::plan {

/// "dim 0 in 4 chunks over dp": one cut, in words. Safe to print.
[[nodiscard]] std::string cut_words(const layout::Cut& cut, const layout::Mesh& mesh);

}  // namespace lading::plan
