// What a rank's memory must be like before a plan is worked out for it: not too large, alone and together (R64), and
// cut at bytes where elements are packed (R48). The verdict is over all ranks, whichever are asked for.
#pragma once

#include "lading/result.h"
#include "layout/layout.h"
#include "planner/decide.h"
#include "planner/regions.h"

namespace lading::planner {

Errors check_buffers(const Decisions& decisions, const layout::Layout& layout, Regions& regions);

}  // namespace lading::planner
