// RegionTable: regions, each worked out once. Tensors of one shape that are cut alike share it on a rank.
//
// For one thread.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "layout/region.h"

namespace lading::layout {

class RegionTable {
 public:
  explicit RegionTable(const Mesh& mesh) : mesh_(mesh) {}

  /// A number that is equal for equal shapes with equal cuts. Borrows both. They must have passed check_cuts().
  std::uint32_t kind_of(const Shape& shape, const std::vector<Cut>& cuts);
  /// Valid until the next call.
  const Region& of(std::uint32_t kind, std::uint64_t rank);
  /// Forgets the regions of a rank that nobody asks for again.
  void release(std::uint64_t rank) { known_.erase(rank); }
  [[nodiscard]] std::size_t kinds() const { return kinds_.size(); }

 private:
  struct Kind {
    const Shape* shape = nullptr;
    const std::vector<Cut>* cuts = nullptr;
  };

  const Mesh& mesh_;
  std::vector<Kind> kinds_;
  std::unordered_map<std::string, std::uint32_t> numbers_;                              // of kinds
  std::unordered_map<std::uint64_t, std::unordered_map<std::uint32_t, Region>> known_;  // by rank and kind
};

}  // namespace lading::layout
