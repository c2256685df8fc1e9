// The planner's first half: what every tensor is, on all ranks. Each has one source, chosen in a fixed
// order: the user's word, the file, a tie, a derivation, the value that is there, an initial value.
//
// Problems are collected over all stages. A tensor that has one is left out of the stages behind it, so that
// nothing is told that only follows from something told before.
#pragma once

#include <vector>

#include "mapping/expression.h"
#include "mapping/pieces.h"
#include "planner/plan_types.h"
#include "planner/planner.h"
#include "planner/work_out.h"

namespace lading::planner {

/// A tensor that comes from files, worked out.
struct FilePieces {
  mapping::Pieces pieces;
  SourceNumbers source_numbers;  ///< by pieces.sources, into Plan::sources
};

/// Members of a tie class that answer for all of it: one storage has one kind, one memory, one value. Statements.
struct Speakers {
  std::uint32_t kind = 0;    ///< the first parameter, or the first member
  std::uint32_t memory = 0;  ///< the first that has a value, else memory; without any, the one of `kind`
  std::uint32_t value = 0;   ///< the one whose derivation it is
};

struct Decisions {
  Plan plan;                                      ///< without rank plans
  std::vector<FilePieces> pieces;                 ///< by statement; empty where there is no file
  std::vector<std::vector<FilePieces>> compared;  ///< by statement: its must_equal
  std::vector<bool> is_derived;                   ///< by statement: its value is its derivation's
  std::vector<std::uint32_t> class_of;  ///< by statement: the statement that its tie class is told under, or itself
  std::vector<Speakers> speakers;       ///< by statement, of a tie class at the one that it is told under
  std::vector<bool> is_refused;         ///< by statement: its source or dtype is not known, for a reason that was told
  std::vector<bool> is_misplaced;       ///< by statement: its placement cannot be, which was told
  bool tells_of_payloads = false;       ///< payloads of quantized weights were refused, which explains the rest (R48)

  /// Statements of each tie class that holds, ascending: the first is the one that it is told under.
  [[nodiscard]] std::vector<std::vector<std::uint32_t>> tie_classes() const;
};

Result<Decisions, Errors> decide(const PlanInputs& inputs);

}  // namespace lading::planner
