#include "plan/presence.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace lading::plan {
namespace {

using layout::Cut;
using layout::CutKind;
using layout::Mesh;
using layout::Slot;

constexpr std::uint64_t kMostPlaces = std::uint64_t{1} << 16;

bool has(const Slot& slot, const Mesh& mesh, std::uint64_t rank) {
  return std::all_of(slot.cuts.begin(), slot.cuts.end(), [&](const Cut& cut) {
    return cut.kind != CutKind::kOwner ||
           std::find(cut.owners.begin(), cut.owners.end(), mesh.seat(cut.axes, rank).index) != cut.owners.end();
  });
}

bool has(const layout::Placement& placement, const Mesh& mesh, std::uint64_t rank) {
  return std::any_of(placement.slots.begin(), placement.slots.end(),
                     [&](const Slot& slot) { return has(slot, mesh, rank); });
}

void add_owner_axes(const Slot& slot, std::vector<std::size_t>& axes) {
  for (const Cut& cut : slot.cuts) {
    if (cut.kind == CutKind::kOwner) axes.insert(axes.end(), cut.axes.begin(), cut.axes.end());
  }
}

enum class Search { kFound, kNotFound, kTooMany };

// Ranks that differ in these axes only, until one is wanted. Ranks that differ in other axes own the same.
Search find_rank(std::vector<std::size_t> axes, const Mesh& mesh, const std::function<bool(std::uint64_t)>& is_wanted) {
  std::sort(axes.begin(), axes.end());
  axes.erase(std::unique(axes.begin(), axes.end()), axes.end());
  const std::uint64_t places = mesh.group_size(axes);
  if (places > kMostPlaces) return Search::kTooMany;
  for (std::uint64_t place = 0; place < places; ++place) {
    std::uint64_t rank = 0;
    std::uint64_t rest = place;
    std::uint64_t stride = 1;
    for (std::size_t axis = mesh.axes().size(); axis-- > 0;) {
      const std::uint64_t size = mesh.axes()[axis].size;
      if (std::binary_search(axes.begin(), axes.end(), axis)) {
        rank += rest % size * stride;
        rest /= size;
      }
      stride *= size;
    }
    if (is_wanted(rank)) return Search::kFound;
  }
  return Search::kNotFound;
}

}  // namespace

bool can_meet(const Slot& one, const Slot& two, const Mesh& mesh) {
  std::vector<std::size_t> axes;
  add_owner_axes(one, axes);
  add_owner_axes(two, axes);
  const auto both = [&](std::uint64_t rank) { return has(one, mesh, rank) && has(two, mesh, rank); };
  return find_rank(std::move(axes), mesh, both) != Search::kNotFound;
}

std::optional<std::uint64_t> rank_without(const layout::Placement& user, const layout::Placement& used,
                                          const Mesh& mesh) {
  std::vector<std::size_t> axes;
  for (const layout::Placement* placement : {&user, &used}) {
    for (const Slot& slot : placement->slots) add_owner_axes(slot, axes);
  }
  std::optional<std::uint64_t> found;
  // Too many places to look at: then the checker, which sees each rank's plan, is left to find it.
  static_cast<void>(find_rank(std::move(axes), mesh, [&](std::uint64_t rank) {
    if (!has(user, mesh, rank) || has(used, mesh, rank)) return false;
    found = rank;
    return true;
  }));
  return found;
}

}  // namespace lading::plan
