// A ledger from a file or a text.
#pragma once

#include "api/document.h"
#include "lading/plan.h"
#include "lading/result.h"
#include "ledger/ledger.h"

namespace lading {

inline constexpr DocumentLimits kLedgerLimits{"ledger", 4'000'000'000};

/// Errors name the file.
Result<ledger::Ledger, Errors> read_ledger(const PlanDocument& document);

}  // namespace lading
