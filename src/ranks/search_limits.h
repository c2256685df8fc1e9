// How far ranks whose lists of tensors differ look for where they do.
#pragma once

#include <cstddef>

namespace lading::ranks {

inline constexpr std::size_t kFollowed = 16;        ///< parts of the lists in which they differ; tensors that are named
inline constexpr std::size_t kRepresentatives = 8;  ///< of ranks that differ: different lists that are compared

}  // namespace lading::ranks
