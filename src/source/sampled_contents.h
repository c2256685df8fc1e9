// A word about what the files of a checkpoint hold: ranks that have another checkpoint of the same shapes, such as a
// fine-tuned one, are told apart before a byte is loaded.
//
// From the name and size of each shard and a few blocks of it, evenly spread. It sees another checkpoint, not a single
// changed value: for that, ranks compare what they have loaded, and `verify` reads everything.
#pragma once

#include <string>

#include "lading/result.h"
#include "source/checkpoint_source.h"

namespace lading::source {

/// 32 hexadecimal digits.
[[nodiscard]] Result<std::string> sampled_contents(const CheckpointSource& source);

}  // namespace lading::source
