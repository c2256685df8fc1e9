// From cuts to regions: what a rank holds. The planner's arithmetic; the checker has its own, and no door to this.
#pragma once

#include "layout/layout.h"

namespace lading::layout {

/// Where a rank's share lies. The shape and the cuts must have passed check_cuts().
Region region_of(const Shape& global, const std::vector<Cut>& cuts, const Mesh& mesh, std::uint64_t rank);

/// How often region_of() was called in this process: tests see that nobody works a region out again.
std::uint64_t regions_worked_out();

}  // namespace lading::layout
