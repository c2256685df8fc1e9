// A ledger from a file or a text.
#pragma once

#include "lading/plan.h"
#include "lading/result.h"
#include "ledger/ledger.h"

namespace lading {

/// Errors name the file.
Result<ledger::Ledger, Errors> read_ledger(const PlanDocument& document);

}  // namespace lading
