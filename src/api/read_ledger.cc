#include "api/read_ledger.h"

#include "api/document.h"

namespace lading {

Result<ledger::Ledger, Errors> read_ledger(const PlanDocument& document) {
  const DocumentLimits limits{"ledger", 4'000'000'000};
  LADING_ASSIGN_OR_RETURN(const JsonDocument json, read_document(document, limits));
  auto ledger = ledger::parse_ledger(json);
  if (!ledger) ledger.error().relocate(document_name(document, limits), 0);
  return ledger;
}

}  // namespace lading
