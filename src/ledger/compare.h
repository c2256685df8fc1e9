// Two loads compared by their ledgers, whatever layouts they had: which tensors differ, in which rows, on which ranks.
// Pure.
//
// Digests of parts add up, so both sides' sums are compared: of whole tensors first, then, where these differ, of the
// smallest groups of parts that cover the same elements on both sides.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ledger/ledger.h"

namespace lading::ledger {

struct Comparison {
  std::uint64_t tensors_equal = 0;
  Errors
      differences;  ///< one per tensor and group of parts that differ, replicas that differ among themselves included
  std::vector<std::pair<std::string, std::string>> not_compared;  ///< tensor, and why
};

[[nodiscard]] Comparison compare(const Ledger& first, const Ledger& second);

/// The ledgers of one load that its processes wrote, each of ranks of its own, as one.
[[nodiscard]] Result<Ledger> merge(std::vector<Ledger> ledgers);

}  // namespace lading::ledger
