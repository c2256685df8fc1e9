#include "api/shared/destinations.h"

#include <numeric>

#include "plan/replicas.h"

namespace lading {
namespace {

DestinationInfo describe(const plan::Plan& plan, const plan::RankPlan& rank, const plan::Destination& destination) {
  const plan::Statement& s = plan.statements[destination.statement];
  const plan::Statement& root = plan.statements[destination.root];
  DestinationInfo info;
  info.rank = rank.rank;
  info.name = s.name;
  info.slot = destination.slot;
  info.flat_parameter = destination.flat_parameter;
  info.device = layout::parse_device(destination.device).value();  // the checker has seen it
  info.provenance = root.provenance;
  info.checkpoint = root.checkpoint;
  info.dtype = s.storage;
  info.shape = s.shape;
  info.size_bytes = destination.buffer_bytes;
  const layout::Region& region = rank.regions[destination.region];
  info.local_shape = region.flat ? Shape{region.buffer_elems} : region.local_shape;
  for (const plan::StatementId alias : destination.aliases) info.aliases.push_back(plan.statements[alias].name);
  return info;
}

}  // namespace

std::vector<DestinationInfo> describe_destinations(const plan::Plan& plan, const std::vector<std::uint32_t>& ranks) {
  std::vector<std::uint32_t> described = ranks;
  if (described.empty()) {
    described.resize(plan.ranks.size());
    std::iota(described.begin(), described.end(), 0);
  }
  std::vector<DestinationInfo> destinations;
  plan::Replicas replicas(plan);
  for (const std::uint32_t r : described) {
    const plan::RankPlan& rank = plan.ranks[r];
    for (const plan::Destination& d : rank.destinations) {
      destinations.push_back(describe(plan, rank, d));
      destinations.back().replicas = replicas.of(rank.rank, d);
    }
  }
  return destinations;
}

}  // namespace lading
