#include "lading/compare.h"

#include <utility>

#include "api/read_ledger.h"
#include "api/refuse.h"
#include "ledger/compare.h"

namespace lading {

Result<LedgerComparison, Refusal> compare(const CompareRequest& request) {
  const auto first = read_ledgers(request.first);
  const auto second = read_ledgers(request.second);
  Errors problems;
  if (!first) problems.add(first.error());
  if (!second) problems.add(second.error());
  if (!problems.empty()) return refuse(Stage::kDocuments, std::move(problems));
  ledger::Comparison found = ledger::compare(*first, *second);
  return LedgerComparison{found.tensors_equal, std::move(found.differences), std::move(found.not_compared)};
}

}  // namespace lading
