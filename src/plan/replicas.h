// Replicas: which ranks hold the same bytes, and which of them reads them for the others. Pure.
//
// Both answers follow from the plan alone, so ranks that hold the same bytes come to the same ones without asking
// each other.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace lading::plan {

using RankList = std::vector<std::uint64_t>;

/// The sets of ranks of one plan. Destinations that are cut alike share a list.
class Replicas {
 public:
  /// Sets that are larger are not listed: each of their ranks stands for itself.
  static constexpr std::uint64_t kMostRanks = std::uint64_t{1} << 16;

  /// Borrows the plan.
  explicit Replicas(const Plan& plan);

  /// The ranks that hold the same bytes as this destination of `rank`, and under the same name; ascending, `rank` among
  /// them.
  [[nodiscard]] std::shared_ptr<const RankList> of(std::uint64_t rank, const Destination& destination);

 private:
  /// Numbers that say how ranks are picked: two destinations with the same key have the same set.
  using Key = std::vector<std::uint64_t>;

  std::vector<const layout::Slot*> holders_before(const Destination& destination) const;

  const Plan& plan_;
  std::map<std::string_view, std::vector<StatementId>> classes_;  // by root: the root, then the others, ascending
  std::map<Key, std::shared_ptr<const RankList>> sets_;
};

/// Of each destination: the rank that reads it for all that hold the same bytes; nothing: each rank that holds it reads
/// it.
using Readers = IndexedVector<DestinationId, std::optional<std::uint64_t>>;

/// By Plan::ranks. Only bytes of files that have a buffer of their own are handed over, and only between ranks of
/// one node. `nodes` has a name per rank of the mesh: one name for all is one node.
[[nodiscard]] std::vector<Readers> owners_of(const Plan& plan, const std::vector<std::string>& nodes);

}  // namespace lading::plan
