// The stages of a load that read files: filling from transfers, and comparing the other keys of ties (R50).
#pragma once

#include "exec/load.h"

namespace lading::exec {

/// Carries out every transfer that reads a file.
void read_files(const Load& load);

/// Compares what was written with the other keys that must hold the same.
void compare_ties(const Load& load);

}  // namespace lading::exec
