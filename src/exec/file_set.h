// FileSet: some of a plan's files.
#pragma once

#include <set>

#include "plan/plan.h"

namespace lading::exec {

using FileSet = std::set<plan::FileId>;

}  // namespace lading::exec
