#include "api/read_ledger.h"

namespace lading {

Result<ledger::Ledger, Errors> read_ledger(const PlanDocument& document) {
  LADING_ASSIGN_OR_RETURN(const JsonDocument json, read_document(document, kLedgerLimits));
  auto ledger = ledger::parse_ledger(json);
  if (!ledger) ledger.error().relocate(document_name(document, kLedgerLimits), 0);
  return ledger;
}

}  // namespace lading
