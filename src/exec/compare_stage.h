// The stages of a load that compare memory with files: the other keys of ties (R50), and files that somebody may have
// been writing to while they were read (R45).
#pragma once

#include "exec/reading.h"

namespace lading::exec {

/// Compares what was written with the other keys that must hold the same. Returns the doubtful files, as run_tasks()
/// does.
FileSet compare_ties(const Load& load);

/// Compares everything that came from these files with the files once more, when their mtimes are io::kWriteTime old:
/// a write that was under way while they were read has left other bytes behind.
void compare_again(const Load& load, const FileSet& files);

}  // namespace lading::exec
