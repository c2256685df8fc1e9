// The planner's first half: what every tensor is, on all ranks. Each has one source, chosen in a fixed
// order: the user's word, the file, a tie, a derivation, the value that is there, an initial value.
#pragma once

#include <vector>

#include "mapping/expression.h"
#include "plan/plan.h"
#include "plan/planner.h"

namespace lading::plan {

/// A tensor that comes from files, worked out.
struct FilePieces {
  mapping::Pieces pieces;
  std::vector<std::uint32_t> source_numbers;  ///< by pieces.sources, into Plan::sources
};

struct Decisions {
  Plan plan;                            ///< without rank plans
  std::vector<FilePieces> pieces;       ///< by statement; empty where there is no file
  std::vector<bool> is_derived;         ///< by statement: its value is its derivation's
  std::vector<std::uint32_t> class_of;  ///< by statement: the statement that its tie class is told under, or itself
};

Result<Decisions, Errors> decide(const PlanInputs& inputs);

}  // namespace lading::plan
