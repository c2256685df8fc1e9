// What the files of a save plan say of themselves: headers and index. Internal to checker/save.
#pragma once

#include "lading/error.h"
#include "plan/save/save_plan.h"

namespace lading::checker {

/// Each file begins with a header that lists the sources of the load in it, which fill the rest of the file without gap
/// or overlap; and the index names the file of each.
[[nodiscard]] Errors check_files(const plan::SavePlan& save);

}  // namespace lading::checker
