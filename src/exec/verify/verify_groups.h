// What verify has to do: tensors that have one value between them, in the order in which files are read. For verify.cc
// only. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/catalog.h"
#include "ledger/audit.h"
#include "ledger/ledger.h"

namespace lading::exec {

/// Tensors that have one value: a tie class, as far as it is stored in one dtype.
struct Group {
  std::uint32_t root = 0;  ///< that has the source; into Ledger::tensors
  DType storage = DType::kF32;
  std::vector<std::uint32_t> members;
  std::vector<std::uint32_t> files;  ///< of the catalog, sorted, each once
  std::uint64_t begin_bytes = 0;     ///< of the first source in the first file: tensors are read in file order
  /// Bytes that the records claim and that no file can stand for: recipes and padding. A ledger of two kilobytes can
  /// claim terabytes of them. What a few slots or replicas of a source hold is not counted.
  std::uint64_t made_bytes = 0;
};

[[nodiscard]] std::vector<Group> groups_of(const ledger::Ledger& ledger, const ledger::TensorDigests& digests,
                                           const checkpoint::Catalog& catalog);

}  // namespace lading::exec
