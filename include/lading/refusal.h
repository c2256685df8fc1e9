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

  /// Of the command line: kUsage for kRequest, kPlan for kDocuments and kPlanning, kInternal for kProof; for
  /// kCheckpoint as the first problem's code has it.
  [[nodiscard]] LADING_API Exit exit_code() const;
};

}  // namespace lading
