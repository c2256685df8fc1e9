// Why nothing was loaded.
#pragma once

#include <cstdint>

#include "lading/export.h"
#include "lading/result.h"

namespace lading {

/// The stage that refused the request.
enum class Stage : std::uint8_t {
  kRequest,     ///< the request makes no sense
  kCheckpoint,  ///< the checkpoint is refused
  kDocuments,   ///< skeleton, layout, mapping, policy, ledger or an older plan is refused
  kPlanning,    ///< they contradict each other
  kProof,       ///< the checker refuses the plan: a bug of lading's
};

struct Refusal {
  Stage stage = Stage::kRequest;
  Errors problems;

  /// Exit code by stage: request 2, documents and planning 4, proof 1. For a refused checkpoint, the exit code of the
  /// first problem.
  [[nodiscard]] LADING_API Exit exit_code() const;
};

}  // namespace lading
