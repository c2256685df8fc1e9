// The stage of a load that fills memory from files.
#pragma once

#include "exec/reading.h"

namespace lading::exec {

/// Carries out every transfer that reads a file. Returns the doubtful files, as run_tasks() does.
FileSet read_files(const Load& load);

}  // namespace lading::exec
