// From the API's CheckpointRef to its files.
#pragma once

#include "lading/checkpoint.h"
#include "source/checkpoint_source.h"

namespace lading {

inline Result<source::CheckpointSource, Errors> open_checkpoint(const CheckpointRef& checkpoint,
                                                                source::OpenOptions options = {}) {
  options.locate.root = checkpoint.root;
  options.locate.revision = checkpoint.revision;
  if (checkpoint.trailing_bytes == TrailingBytesPolicy::kAllow) {
    options.trailing_bytes = checkpoint::TrailingBytes::kAllow;
  }
  return source::CheckpointSource::open(checkpoint.path, options);
}

}  // namespace lading
