// Whether two transfers take the same bytes of a file in the same steps, so that any part of a read serves both.
#pragma once

#include "plan/plan.h"

namespace lading::plan {

/// The loops of more than one round, by source stride, greatest first.
[[nodiscard]] std::vector<ByteLoop> loops_by_source(const Transfer& transfer);

[[nodiscard]] bool have_equal_sources(const Transfer& a, const Transfer& b);

}  // namespace lading::plan
