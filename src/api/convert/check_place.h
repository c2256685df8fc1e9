// Where a new checkpoint must not be: in the checkpoint that it is made of, or around it.
#pragma once

#include <string>

#include "lading/result.h"
#include "source/checkpoint_source.h"

namespace lading {

/// Directories are compared by device and inode, links followed: nothing that is read can be replaced, and nothing is
/// put among what is read.
Result<void> check_place(const source::CheckpointSource& checkpoint, const std::string& place);

}  // namespace lading
