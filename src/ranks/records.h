// Ranks compare long lists, one record per tensor, by a digest; only where they differ do they find out where, by a
// tree of digests of which they exchange the branches that differ (R30).
//
//   LADING_TRY(agree_records(ranks, "checkpoint", records));    "tensor a.weight: dtype F32 on rank 3, BF16 on ranks
//   0-2"
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ranks/coordinator.h"

namespace lading::ranks {

struct Record {
  std::string name;                                         ///< of a tensor; each name once
  std::vector<std::pair<std::string, std::string>> fields;  ///< "dtype", "BF16"
};

/// In any order. On every rank alike: well, or all ranks fail with the tensors and fields that differ, at most sixteen
/// of them.
Result<void, Verdict> agree_records(Coordinator& ranks, const std::string& what, const std::vector<Record>& records);

}  // namespace lading::ranks
