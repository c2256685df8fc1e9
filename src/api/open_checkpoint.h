// From the API's CheckpointRef to its files.
#pragma once

#include <utility>
#include <vector>

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

/// A checkpoint and its adapters behind it, or every reason why not.
inline Result<source::CheckpointSource, Errors> open_checkpoints(const CheckpointRef& checkpoint,
                                                                 const std::vector<CheckpointRef>& adapters) {
  auto source = open_checkpoint(checkpoint);
  Errors errors;
  if (!source) errors = source.error();
  for (const CheckpointRef& adapter : adapters) {
    auto opened = open_checkpoint(adapter);
    if (!opened) {
      errors.add(std::move(opened).error());
    } else if (source) {
      source->append(*std::move(opened));
    }
  }
  if (!errors.empty()) return fail(std::move(errors));
  return source;
}

}  // namespace lading
