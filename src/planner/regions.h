// Regions: what ranks hold of the statements, each worked out once for all tensors of one shape that are cut alike.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/region_table.h"
#include "planner/plan_types.h"

namespace lading::planner {

class Regions {
 public:
  /// Borrows the statements and the mesh.
  Regions(const IndexedVector<StatementId, Statement>& statements, const layout::Mesh& mesh) : table_(mesh) {
    for (const Statement& s : statements) {
      first_.push_back(kinds_.size());
      for (const layout::Slot& slot : s.placement.slots) kinds_.push_back(table_.kind_of(s.shape, slot.cuts));
    }
  }

  /// A number that is equal for slots that hold the same on every rank.
  [[nodiscard]] std::uint32_t kind(StatementId statement, std::size_t slot) const {
    return kinds_[first_[statement] + slot];
  }
  /// Valid until the next call.
  const layout::Region& of(StatementId statement, std::size_t slot, std::uint64_t rank) {
    return table_.of(kind(statement, slot), rank);
  }
  layout::RegionTable& table() { return table_; }

 private:
  layout::RegionTable table_;
  IndexedVector<StatementId, std::size_t> first_;  // into kinds_
  std::vector<std::uint32_t> kinds_;               // of all slots
};

}  // namespace lading::planner
