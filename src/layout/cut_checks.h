// What is wrong with a list of cuts, before any tensor is known. Private to this room.
#pragma once

#include <vector>

#include "layout/layout.h"

namespace lading::layout {

struct CutProblem {
  std::size_t cut = 0;  ///< which of the list
  Error error;
};

/// The mesh must have passed check_mesh().
std::vector<CutProblem> cut_list_problems(const std::vector<Cut>& cuts, const Mesh& mesh);

}  // namespace lading::layout
