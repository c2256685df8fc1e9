// A ledger from a file or a text.
#pragma once

#include <vector>

#include "api/document.h"
#include "lading/document.h"
#include "lading/result.h"
#include "ledger/ledger.h"

namespace lading {

/// A record for each tensor and rank: of many ranks, these are many.
inline constexpr DocumentLimits kLedgerLimits{"ledger", 4'000'000'000, JsonLimits{}};

/// Errors name the file.
Result<ledger::Ledger, Errors> read_ledger(const Document& document);
/// The ledgers of one load as one. The errors of all files are listed.
Result<ledger::Ledger, Errors> read_ledgers(const std::vector<Document>& documents);

}  // namespace lading
