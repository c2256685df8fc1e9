// A small sharded checkpoint to try things on.
#pragma once

#include <string>

#include "lading/export.h"
#include "lading/result.h"

namespace lading {

/// Writes two shards and their index into `directory`, which is made if it is not there. The same
/// bytes every time: two decoder layers with a mixture of dtypes, 0-dim and fp32 tensors among them.
/// Refuses to write where files of the same names hold something else.
LADING_API Result<void, Errors> write_sample_checkpoint(const std::string& directory);

}  // namespace lading
