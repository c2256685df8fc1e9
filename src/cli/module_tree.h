// A tree of tensors by module prefix, in which equal siblings are told once: layers.{0..31}.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lading/inspect.h"

namespace lading::cli {

struct TreeLine {
  int depth = 0;
  std::string label;          ///< escaped
  std::uint64_t copies = 1;   ///< how many equal subtrees this line stands for
  std::uint64_t tensors = 0;  ///< in all copies
  std::uint64_t bytes = 0;
  std::string leaf;  ///< "BF16 [2, 3]" for a tensor, else empty
};

/// `tensors` sorted by name.
std::vector<TreeLine> module_tree(const std::vector<TensorInfo>& tensors);

}  // namespace lading::cli
