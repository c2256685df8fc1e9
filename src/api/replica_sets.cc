#include "api/replica_sets.h"

#include <map>

#include "api/planned.h"

namespace lading {
namespace {

bool may_differ(const plan::Plan& plan, const DestinationInfo& destination) {
  const plan::Statement* statement = plan.find(destination.name);
  if (statement != nullptr && statement->provenance == Provenance::kAlias) statement = plan.find(statement->alias_of);
  return statement != nullptr && statement->kept_by_name;
}

}  // namespace

std::vector<ranks::ReplicaSet> replica_sets(const LoadReport& report) {
  const plan::Plan& plan = Planned::of(report.plan).plan;
  std::map<const void*, std::size_t> places;
  std::vector<ranks::ReplicaSet> sets;
  for (const LoadedTensor& tensor : report.tensors) {
    const DestinationInfo& d = tensor.destination;
    if (d.replicas->size() < 2 || tensor.digest.empty() || may_differ(plan, d)) continue;
    const auto [place, is_new] = places.emplace(d.replicas.get(), sets.size());
    if (is_new) sets.push_back({ranks::RankSet(*d.replicas), {}});
    sets[place->second].digests.push_back({d.name, d.slot, tensor.digest, d.provenance == Provenance::kKept});
  }
  return sets;
}

}  // namespace lading
