// The stage of a load that fills memory from files.
#pragma once

#include "exec/reading.h"

namespace lading::exec {

/// Reads the scales that come first, and writes nothing. What is wrong with them becomes an error of the load's crew.
[[nodiscard]] Batches begin_files(const Load& load);
/// Carries out every transfer that reads a file. Returns the doubtful files, as run_tasks() does.
FileSet read_files(const Load& load, const Batches& batches);

}  // namespace lading::exec
