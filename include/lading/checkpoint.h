// Which checkpoint, and how to look for it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace lading {

enum class TrailingBytesPolicy : std::uint8_t { kRefuse, kAllow };

struct CheckpointRef {
  /// A safetensors file, an index, a directory, a Hugging Face cache folder, or "org/name" to be found in that cache.
  std::string path = {};
  std::optional<std::string> root = {};      ///< links may lead anywhere beneath it
  std::optional<std::string> revision = {};  ///< of a repository in the Hugging Face cache
  TrailingBytesPolicy trailing_bytes = TrailingBytesPolicy::kRefuse;
};

/// An adapter (LoRA) that is loaded with a base checkpoint: a checkpoint of its own, whose keys no mapping touches.
struct AdapterRef {
  CheckpointRef checkpoint = {};
  /// By key of the adapter: the name of the model's tensor. A key that is not here is the tensor of its own name.
  std::map<std::string, std::string, std::less<>> names = {};
};

}  // namespace lading
