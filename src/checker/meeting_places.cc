#include "checker/meeting_places.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

namespace lading::checker {
namespace {

// The owner cuts of two slots, and how far a search among them has come.
class Meeting {
 public:
  explicit Meeting(const layout::Mesh& mesh) : mesh_(mesh) {}

  void add(const layout::Slot& slot) {
    for (const layout::Cut& cut : slot.cuts) {
      if (cut.kind == layout::CutKind::kOwner) cuts_.push_back(&cut);
    }
  }

  // An owner of every cut, such that no axis is wanted at two places. Undecided after many steps: they may meet.
  bool is_possible(std::size_t cut = 0) {
    if (cut == cuts_.size()) return true;
    for (const std::uint64_t owner : cuts_[cut]->owners) {
      if (++steps_ > kMostSteps) return true;
      std::vector<std::size_t> taken;
      const bool fits = take(*cuts_[cut], owner, taken);
      if (fits && is_possible(cut + 1)) return true;
      for (const std::size_t axis : taken) at_.erase(axis);
    }
    return false;
  }

 private:
  static constexpr std::uint64_t kMostSteps = std::uint64_t{1} << 22;

  bool take(const layout::Cut& cut, std::uint64_t owner, std::vector<std::size_t>& taken) {
    for (auto axis = cut.axes.rbegin(); axis != cut.axes.rend(); ++axis) {
      const std::uint64_t size = mesh_.axes()[*axis].size;
      const auto [place, is_new] = at_.emplace(*axis, owner % size);
      if (is_new) taken.push_back(*axis);
      if (place->second != owner % size) return false;
      owner /= size;
    }
    return owner == 0;  // else nobody has that place
  }

  const layout::Mesh& mesh_;
  std::vector<const layout::Cut*> cuts_;
  std::map<std::size_t, std::uint64_t> at_;  // by axis
  std::uint64_t steps_ = 0;
};

// Whether some rank has both: not if they belong to different pipeline stages (R51).
bool can_meet(const layout::Slot& a, const layout::Slot& b, const layout::Mesh& mesh) {
  Meeting meeting(mesh);
  meeting.add(a);
  meeting.add(b);
  return meeting.is_possible();
}

}  // namespace

bool same_placement(const layout::Placement& a, const layout::Placement& b, const layout::Mesh& mesh) {
  const auto plain_cuts = [](const layout::Slot& slot) {
    std::vector<layout::Cut> cuts = slot.cuts;
    std::erase_if(cuts, [](const layout::Cut& cut) { return cut.kind == layout::CutKind::kOwner; });
    for (layout::Cut& cut : cuts) cut.even = false;
    return cuts;
  };
  const auto same_name = [](const layout::Slot& one, const layout::Slot& two) { return one.name == two.name; };
  const bool same_slots = std::equal(a.slots.begin(), a.slots.end(), b.slots.begin(), b.slots.end(), same_name);
  const bool alike = same_slots && a.device == b.device && a.fsdp_group == b.fsdp_group;
  for (std::size_t i = 0; i < a.slots.size(); ++i) {
    for (std::size_t j = 0; j < b.slots.size(); ++j) {
      if (same_slots && i != j) continue;
      if (alike && plain_cuts(a.slots[i]) == plain_cuts(b.slots[j])) continue;
      if (can_meet(a.slots[i], b.slots[j], mesh)) return false;
    }
  }
  return true;
}

}  // namespace lading::checker
