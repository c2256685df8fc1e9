#include "lading/compare.h"

#include "api/document.h"
#include "api/read_ledger.h"
#include "ledger/compare.h"

namespace lading {
namespace {

Result<ledger::Ledger, Errors> read_all(const std::vector<PlanDocument>& documents) {
  if (documents.empty()) return Unexpected<Errors>{Errors{Error(Code::kNotFound, "no ledger was given")}};
  std::vector<ledger::Ledger> ledgers;
  for (const PlanDocument& document : documents) {
    LADING_ASSIGN_OR_RETURN(ledger::Ledger ledger, read_ledger(document));
    ledgers.push_back(std::move(ledger));
  }
  auto merged = ledger::merge(std::move(ledgers));
  if (!merged) return Unexpected<Errors>{Errors{std::move(merged).error()}};
  return std::move(*merged);
}

}  // namespace

Result<LedgerComparison, PlanRefusal> compare(const CompareRequest& request) {
  const auto first = read_all(request.first);
  if (!first) return Unexpected<PlanRefusal>{PlanRefusal{PlanStage::kDocuments, first.error()}};
  const auto second = read_all(request.second);
  if (!second) return Unexpected<PlanRefusal>{PlanRefusal{PlanStage::kDocuments, second.error()}};
  ledger::Comparison found = ledger::compare(*first, *second);
  return LedgerComparison{found.tensors_equal, std::move(found.differences), std::move(found.not_compared)};
}

}  // namespace lading
