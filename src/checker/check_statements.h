// The half of a plan that holds for all ranks: files, sources, statements, ties and calls.
#pragma once

#include <cstdint>
#include <vector>

#include "checker/plan_types.h"
#include "checker/trace.h"
#include "lading/result.h"

namespace lading::checker {

/// What the rank checks need to know of the statements.
struct Facts {
  /// A tie class is its root and the root's aliases; a tensor that is tied to nothing is a root too.
  struct Tensor {
    StatementId root;
    bool sound = false;                ///< it and its root can be worked out; problems of those that cannot are listed
    std::vector<StatementId> aliases;  ///< of a root, ascending
  };
  IndexedVector<StatementId, Tensor> tensors;
  IndexedVector<StatementId, Trace> traces;  ///< of roots of kFile and kFill
};

/// Problems are added to `errors`.
Facts check_statements(const Plan& plan, Errors& errors);

}  // namespace lading::checker
