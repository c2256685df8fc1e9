// The planner's first half: what every tensor is, on all ranks. Each has one source, chosen in a fixed
// order: the user's word, the file, a tie, a derivation, the value that is there, an initial value.
//
// Problems are collected over all stages. A tensor that has one is left out of the stages behind it, so that
// nothing is told that only follows from something told before.
#pragma once

#include <map>
#include <string>
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
  SourceNumbers source_numbers;  ///< by pieces.sources
};

/// Members of a tie class that answer for all of it: one storage has one kind, one memory, one value.
struct Speakers {
  StatementId kind = 0;    ///< the first parameter, or the head
  StatementId memory = 0;  ///< the first that has a value, else memory; without any, the one of `kind`
  StatementId value = 0;   ///< the one whose derivation it is
};

/// What was decided about one statement, beside the statement itself.
struct Decision {
  FilePieces pieces;                     ///< empty where there is no file
  std::vector<FilePieces> compared;      ///< its must_equal
  std::vector<std::string> unread_keys;  ///< at the head: of the base, that the tensor would have been read from
  StatementId head = 0;                  ///< of its tie class: the first registered name, else the first; or itself
  Speakers speakers;                     ///< of a tie class, at its head
  bool is_derived = false;               ///< its value is its derivation's
  bool is_refused = false;               ///< its source or dtype is not known, for a reason that was told
  bool is_misplaced = false;             ///< its placement cannot be, which was told
};

/// A key of an adapter.
struct AdapterKey {
  std::uint32_t checkpoint = 0;
  std::string key;
};

struct Decisions {
  Plan plan;  ///< without rank plans
  IndexedVector<StatementId, Decision> tensors;
  std::map<StatementId, AdapterKey> adapter_keys;  ///< of the tensors that an adapter has
  bool tells_of_payloads = false;  ///< payloads of quantized weights were refused, which explains the rest (R48)

  /// Statements of each tie class that holds: its head, then the others, ascending.
  [[nodiscard]] std::vector<std::vector<StatementId>> tie_classes() const;
};

Result<Decisions, Errors> decide(const PlanInputs& inputs);

}  // namespace lading::planner
