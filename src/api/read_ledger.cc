#include "api/read_ledger.h"

#include <utility>

#include "ledger/compare.h"

namespace lading {

Result<ledger::Ledger, Errors> read_ledger(const Document& document) {
  LADING_ASSIGN_OR_RETURN(const JsonDocument json, read_document(document, kLedgerLimits));
  auto ledger = ledger::parse_ledger(json);
  if (!ledger) ledger.error().relocate(document_name(document, kLedgerLimits), 0);
  return ledger;
}

Result<ledger::Ledger, Errors> read_ledgers(const std::vector<Document>& documents) {
  if (documents.empty()) return fail(Errors(Error(Code::kNotFound, "no ledger was given")));
  std::vector<ledger::Ledger> ledgers;
  Errors errors;
  for (const Document& document : documents) {
    auto ledger = read_ledger(document);
    if (ledger) {
      ledgers.push_back(*std::move(ledger));
    } else {
      errors.add(std::move(ledger).error());
    }
  }
  if (!errors.empty()) return fail(std::move(errors));
  auto merged = ledger::merge(std::move(ledgers));
  if (!merged) return fail(Errors(std::move(merged).error()));
  return *std::move(merged);
}

}  // namespace lading
