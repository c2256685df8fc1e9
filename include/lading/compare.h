// Compares two loads by their ledgers, whatever layouts they had: `lading::compare(request)`.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lading/document.h"
#include "lading/export.h"
#include "lading/refusal.h"
#include "lading/result.h"

namespace lading {

struct CompareRequest {
  std::vector<Document> first;   ///< ledgers of one load: one, or one per process
  std::vector<Document> second;  ///< of the other
};

struct LedgerComparison {
  std::uint64_t tensors_equal = 0;
  Errors differences;                                             ///< tensor, rows and ranks
  std::vector<std::pair<std::string, std::string>> not_compared;  ///< tensors of which digests are missing, and why
};

/// The error says why the ledgers could not be read.
LADING_API Result<LedgerComparison, Refusal> compare(const CompareRequest& request);

}  // namespace lading
