// Where the value of a tensor comes from.
#pragma once

#include <cstdint>
#include <string_view>

#include "lading/export.h"

namespace lading {

enum class Provenance : std::uint8_t {
  kFile,    ///< checkpoint bytes
  kHost,    ///< a value handed in: derived by the front, or external
  kCall,    ///< computed from other tensors when they are complete
  kFill,    ///< a constant
  kRandom,  ///< sampled, by seed, name and element index
  kAlias,   ///< shares the storage of another tensor
  kKept,    ///< the value that its memory already has
};

/// "file", "host", "call", "fill", "random", "alias", "kept"; null-terminated.
[[nodiscard]] LADING_API std::string_view word(Provenance provenance);

}  // namespace lading
