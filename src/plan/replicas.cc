#include "plan/replicas.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

#include "base/checked.h"
#include "layout/presence.h"

namespace lading::plan {
namespace {

using layout::Cut;
using layout::CutKind;
using layout::Mesh;
using layout::Slot;

const Slot* find_slot(const Statement& statement, const std::string& name) {
  const auto& slots = statement.placement.slots;
  const auto found = std::find_if(slots.begin(), slots.end(), [&](const Slot& slot) { return slot.name == name; });
  return found == slots.end() ? nullptr : &*found;
}

std::uint64_t stride_of(const Mesh& mesh, std::size_t axis) {
  std::uint64_t stride = 1;
  for (std::size_t i = axis + 1; i < mesh.axes().size(); ++i) stride *= mesh.axes()[i].size;
  return stride;
}

// What the ranks that hold the same part have in common: their place on the axes that cut the tensor. On axes that do
// not they are anywhere, and on those of an owner cut where owners are.
class Picker {
 public:
  Picker(const Mesh& mesh, const std::vector<Cut>& cuts, std::uint64_t rank) : mesh_(mesh) {
    std::vector<bool> is_free(mesh.axes().size(), true);
    for (const Cut& cut : cuts) {
      for (const std::size_t axis : cut.axes) is_free[axis] = false;
      if (cut.kind == CutKind::kOwner) {
        owners_.push_back(&cut);
      } else {
        for (const std::size_t axis : cut.axes) fixed_ += place_on(axis, rank) * stride_of(mesh, axis);
      }
    }
    for (std::size_t axis = 0; axis < is_free.size(); ++axis) {
      if (is_free[axis]) free_.push_back(axis);
    }
  }

  /// No axis is in two cuts, so the ranks are told by where they begin and which axes vary.
  [[nodiscard]] std::vector<std::uint64_t> key() const {
    std::vector<std::uint64_t> key = {fixed_, free_.size()};
    key.insert(key.end(), free_.begin(), free_.end());
    for (const Cut* cut : owners_) add_owners(*cut, key);
    return key;
  }

  static void add_owners(const Cut& cut, std::vector<std::uint64_t>& key) {
    key.push_back(cut.axes.size());
    key.insert(key.end(), cut.axes.begin(), cut.axes.end());
    key.push_back(cut.owners.size());
    key.insert(key.end(), cut.owners.begin(), cut.owners.end());
  }

  /// Nothing: they are more than `most`.
  [[nodiscard]] std::optional<RankList> pick(std::uint64_t most) const {
    RankList ranks = {fixed_};
    for (const std::size_t axis : free_) {
      RankList steps(static_cast<std::size_t>(std::min(mesh_.axes()[axis].size, most + 1)));
      for (std::size_t i = 0; i < steps.size(); ++i) steps[i] = i * stride_of(mesh_, axis);
      if (!spread(ranks, steps, most)) return std::nullopt;
    }
    for (const Cut* cut : owners_) {
      RankList steps;
      const std::uint64_t seats = mesh_.group_size(cut->axes);
      for (const std::uint64_t owner : cut->owners) {
        if (owner < seats) steps.push_back(step_of(*cut, owner));
      }
      std::sort(steps.begin(), steps.end());
      steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
      if (!spread(ranks, steps, most)) return std::nullopt;
    }
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }

 private:
  [[nodiscard]] std::uint64_t place_on(std::size_t axis, std::uint64_t rank) const {
    return rank / stride_of(mesh_, axis) % mesh_.axes()[axis].size;
  }

  // What an owner's place on the cut's axes adds to a rank.
  [[nodiscard]] std::uint64_t step_of(const Cut& cut, std::uint64_t owner) const {
    std::uint64_t step = 0;
    for (std::size_t i = cut.axes.size(); i-- > 0;) {
      const std::uint64_t size = mesh_.axes()[cut.axes[i]].size;
      step += owner % size * stride_of(mesh_, cut.axes[i]);
      owner /= size;
    }
    return step;
  }

  static bool spread(RankList& ranks, const RankList& steps, std::uint64_t most) {
    const auto count = checked_mul(ranks.size(), steps.size());
    if (!count || *count > most) return false;
    RankList more;
    more.reserve(*count);
    for (const std::uint64_t rank : ranks) {
      for (const std::uint64_t step : steps) more.push_back(rank + step);
    }
    ranks = std::move(more);
    return true;
  }

  const Mesh& mesh_;
  std::vector<std::size_t> free_;
  std::vector<const Cut*> owners_;
  std::uint64_t fixed_ = 0;
};

bool is_of_a_file(const Plan& plan, const Destination& destination) {
  const Statement& s = plan.statements[destination.statement];
  const Statement& root = s.provenance == Provenance::kAlias ? *plan.find(s.alias_of) : s;
  return root.provenance == Provenance::kFile;
}

// Destinations that go to one reader.
struct Bundle {
  std::uint64_t bytes = 0;
  std::vector<DestinationId> destinations;
};

// Small ones that follow each other stay together: they lie near each other in the file too, and a reader of every
// fourth of them would read the others along.
std::vector<Bundle> bundles_of(const RankPlan& rank, const std::vector<DestinationId>& destinations) {
  constexpr std::uint64_t kSmallBytes = std::uint64_t{64} << 10;
  constexpr std::uint64_t kBundleBytes = std::uint64_t{1} << 20;
  std::vector<Bundle> bundles;
  Bundle small;
  for (const DestinationId d : destinations) {
    const std::uint64_t bytes = rank.destinations[d].buffer_bytes;
    if (bytes >= kSmallBytes) {
      bundles.push_back({bytes, {d}});
      continue;
    }
    small.bytes += bytes;
    small.destinations.push_back(d);
    if (small.bytes >= kBundleBytes) bundles.push_back(std::exchange(small, {}));
  }
  if (!small.destinations.empty()) bundles.push_back(std::move(small));
  return bundles;
}

// What the same ranks hold: the largest goes to the one who has least so far.
void share_out(const RankPlan& rank, const RankList& members, const std::vector<DestinationId>& destinations,
               Readers& owners) {
  std::vector<Bundle> bundles = bundles_of(rank, destinations);
  std::stable_sort(bundles.begin(), bundles.end(), [](const Bundle& a, const Bundle& b) { return a.bytes > b.bytes; });
  using Load = std::pair<std::uint64_t, std::uint64_t>;  // bytes so far, and whose
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (const std::uint64_t member : members) loads.push({0, member});
  for (const Bundle& bundle : bundles) {
    const auto [bytes, member] = loads.top();
    loads.pop();
    for (const DestinationId d : bundle.destinations) owners[d] = member;
    loads.push({bytes + bundle.bytes, member});
  }
}

}  // namespace

Replicas::Replicas(const Plan& plan) : plan_(plan) {
  for (const StatementId s : plan.statements.ids()) {
    const Statement& statement = plan.statements[s];
    if (statement.provenance != Provenance::kAlias) continue;
    std::vector<StatementId>& members = classes_[statement.alias_of];
    const Statement* const root = plan.find(statement.alias_of);
    if (members.empty()) members.push_back(plan.statements.id_of(*root));
    members.push_back(s);
  }
}

// Of a tie class, the root or else the first member that a rank has is its destination: ranks that have one of these
// hold the bytes under another name.
std::vector<const Slot*> Replicas::holders_before(const Destination& destination) const {
  const Statement& s = plan_.statements[destination.statement];
  const auto found = classes_.find(s.provenance == Provenance::kAlias ? s.alias_of : s.name);
  std::vector<const Slot*> before;
  if (found == classes_.end()) return before;
  for (const StatementId member : found->second) {
    if (member == destination.statement) break;
    if (const Slot* slot = find_slot(plan_.statements[member], destination.slot)) before.push_back(slot);
  }
  return before;
}

std::shared_ptr<const RankList> Replicas::of(std::uint64_t rank, const Destination& destination) {
  const Slot* const slot = find_slot(plan_.statements[destination.statement], destination.slot);
  LADING_CHECK(slot != nullptr);
  const std::vector<const Slot*> before = holders_before(destination);
  const Picker picker(plan_.mesh, slot->cuts, rank);
  Key key = picker.key();
  for (const Slot* other : before) {
    for (const Cut& cut : other->cuts) {
      if (cut.kind == CutKind::kOwner) Picker::add_owners(cut, key);
    }
    key.push_back(other->cuts.size());
  }
  if (const auto known = sets_.find(key); known != sets_.end()) return known->second;
  std::optional<RankList> ranks = picker.pick(kMostRanks);
  if (!ranks) return std::make_shared<const RankList>(RankList{rank});  // the key does not say which of them it is
  std::erase_if(*ranks, [&](std::uint64_t other) {
    return std::any_of(before.begin(), before.end(), [&](const Slot* s) { return is_on(*s, plan_.mesh, other); });
  });
  return sets_.emplace(std::move(key), std::make_shared<const RankList>(*std::move(ranks))).first->second;
}

std::vector<Readers> owners_of(const Plan& plan, const std::vector<std::string>& nodes) {
  LADING_CHECK(nodes.size() == plan.mesh.ranks());
  Replicas replicas(plan);
  std::vector<Readers> all;
  for (const RankPlan& rank : plan.ranks) {
    auto& owners = all.emplace_back(rank.destinations.size());
    std::map<const RankList*, std::vector<DestinationId>> alike;  // few lists, and each is kept by `replicas`
    std::vector<std::shared_ptr<const RankList>> kept;
    for (const DestinationId d : rank.destinations.ids()) {
      const Destination& destination = rank.destinations[d];
      if (destination.buffer_bytes == 0 || !destination.flat_parameter.empty() || !is_of_a_file(plan, destination))
        continue;
      const auto set = replicas.of(rank.rank, destination);
      auto& list = alike[set.get()];
      if (list.empty()) kept.push_back(set);
      list.push_back(d);
    }
    std::map<RankList, std::vector<DestinationId>> on_node;
    for (const auto& [set, destinations] : alike) {
      RankList here;
      for (const std::uint64_t other : *set) {
        if (nodes[other] == nodes[rank.rank]) here.push_back(other);
      }
      if (here.size() < 2) continue;
      auto& list = on_node[here];
      list.insert(list.end(), destinations.begin(), destinations.end());
    }
    for (auto& [members, destinations] : on_node) {
      std::sort(destinations.begin(), destinations.end());
      share_out(rank, members, destinations, owners);
    }
  }
  return all;
}

}  // namespace lading::plan
