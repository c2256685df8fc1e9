// What stands behind a LoadHandle.
#pragma once

#include <memory>
#include <utility>

#include "lading/load.h"
#include "ledger/ledger.h"

namespace lading {

struct Loaded {
  ledger::LedgerFacts facts;

  static LoadHandle handle(Loaded loaded) { return LoadHandle(std::make_shared<const Loaded>(std::move(loaded))); }
  /// Of a report that a load made.
  static const Loaded& of(const LoadReport& report) {
    LADING_CHECK(report.handle.loaded_ != nullptr);
    return *report.handle.loaded_;
  }
};

}  // namespace lading
