#include "layout/presence.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "base/checked.h"

namespace lading::layout {
namespace {

constexpr std::uint64_t kMostPlaces = std::uint64_t{1} << 20;

// Per axis, the coordinates that owners are named by. All others are alike: they own nothing.
class OwnerCoordinates {
 public:
  explicit OwnerCoordinates(const Mesh& mesh) : mesh_(mesh) {}

  void add(const Slot& slot) {
    for (const Cut& cut : slot.cuts) {
      if (cut.kind != CutKind::kOwner) continue;
      for (std::uint64_t owner : cut.owners) {
        for (std::size_t i = cut.axes.size(); i-- > 0;) {
          const std::uint64_t size = mesh_.axes()[cut.axes[i]].size;
          named_[cut.axes[i]].insert(owner % size);
          owner /= size;
        }
      }
    }
  }

  enum class Search { kFound, kNotFound, kTooMany };

  // One rank for every way in which ranks differ here, until one is wanted.
  Search find_rank(const std::function<bool(std::uint64_t)>& is_wanted) {
    std::vector<std::vector<std::uint64_t>> steps;  // per axis: what its coordinates add to the rank
    std::uint64_t stride = 1;
    std::uint64_t places = 1;
    for (std::size_t axis = mesh_.axes().size(); axis-- > 0;) {
      const std::uint64_t size = mesh_.axes()[axis].size;
      if (const auto named = named_.find(axis); named != named_.end()) {
        std::set<std::uint64_t>& coordinates = named->second;
        std::uint64_t other = 0;
        while (coordinates.contains(other)) ++other;
        if (other < size) coordinates.insert(other);
        std::vector<std::uint64_t>& list = steps.emplace_back();
        for (const std::uint64_t coordinate : coordinates) list.push_back(coordinate * stride);
        places = checked_mul(places, list.size()).value_or(kMaxSize);
      }
      stride *= size;
    }
    if (places > kMostPlaces) return Search::kTooMany;
    for (std::uint64_t place = 0; place < places; ++place) {
      std::uint64_t rank = 0;
      std::uint64_t rest = place;
      for (const auto& list : steps) {
        rank += list[rest % list.size()];
        rest /= list.size();
      }
      if (is_wanted(rank)) return Search::kFound;
    }
    return Search::kNotFound;
  }

 private:
  const Mesh& mesh_;
  std::map<std::size_t, std::set<std::uint64_t>> named_;
};

}  // namespace

bool is_on(const Slot& slot, const Mesh& mesh, std::uint64_t rank) {
  return std::all_of(slot.cuts.begin(), slot.cuts.end(), [&](const Cut& cut) {
    return cut.kind != CutKind::kOwner ||
           std::find(cut.owners.begin(), cut.owners.end(), mesh.seat(cut.axes, rank).index) != cut.owners.end();
  });
}

bool is_on(const Placement& placement, const Mesh& mesh, std::uint64_t rank) {
  return std::any_of(placement.slots.begin(), placement.slots.end(),
                     [&](const Slot& slot) { return is_on(slot, mesh, rank); });
}

bool can_meet(const Slot& one, const Slot& two, const Mesh& mesh) {
  OwnerCoordinates places(mesh);
  places.add(one);
  places.add(two);
  const auto both = [&](std::uint64_t rank) { return is_on(one, mesh, rank) && is_on(two, mesh, rank); };
  return places.find_rank(both) != OwnerCoordinates::Search::kNotFound;
}

RankWithout rank_without(const Placement& user, const std::vector<const Placement*>& used, const Mesh& mesh) {
  OwnerCoordinates places(mesh);
  for (const Slot& slot : user.slots) places.add(slot);
  for (const Placement* placement : used) {
    for (const Slot& slot : placement->slots) places.add(slot);
  }
  RankWithout result;
  const auto search = places.find_rank([&](std::uint64_t rank) {
    const auto is_here = [&](const Placement* placement) { return is_on(*placement, mesh, rank); };
    if (!is_on(user, mesh, rank) || std::any_of(used.begin(), used.end(), is_here)) return false;
    result.rank = rank;
    return true;
  });
  result.is_known = search != OwnerCoordinates::Search::kTooMany;
  return result;
}

}  // namespace lading::layout
