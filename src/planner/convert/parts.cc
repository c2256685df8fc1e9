#include "planner/convert/parts.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "policy/policy.h"

namespace lading::planner {
namespace {

// All ranks are planned at once.
constexpr std::uint64_t kMostRanks = 4096;
// Whole tensors are at most this share of a part, so that they can fill a part to three quarters without looking ahead.
constexpr std::uint64_t kWholeShare = 4;

constexpr std::size_t kGroupAxis = 0;
constexpr std::size_t kPartAxis = 1;

std::uint64_t bytes_of(const model::Tensor& tensor) { return tensor.shape.size_bytes(tensor.dtype).value_or(0); }

std::uint64_t rounded_up(std::uint64_t bytes, std::uint64_t parts) { return bytes / parts + (bytes % parts ? 1 : 0); }

class Cutter {
 public:
  Cutter(const model::Skeleton& skeleton, std::uint64_t part_bytes, const Followers& followers)
      : skeleton_(skeleton), followers_(followers), part_bytes_(part_bytes) {
    for (const auto& [leader, names] : followers) is_follower_.insert(names.begin(), names.end());
    filled_bytes_ = std::max<std::uint64_t>(1, part_bytes_ - part_bytes_ / kWholeShare);
    for (const model::Tensor& tensor : skeleton.tensors) {
      if (is_cut(tensor)) parts_ = std::max(parts_, rounded_up(bytes_of(tensor), filled_bytes_));
    }
    bytes_.resize(parts_ <= kMostRanks ? parts_ : 1);
  }

  // Nothing: more ranks than a save can have.
  std::optional<layout::Layout> run() {
    if (parts_ > kMostRanks) return std::nullopt;
    for (const model::Tensor& tensor : skeleton_.tensors) {
      if (!is_follower_.contains(tensor.name)) place(tensor);
      if ((group_ + 1) * parts_ > kMostRanks) return std::nullopt;
    }
    layout_.mesh = layout::Mesh({{"group", group_ + 1}, {"part", parts_}});
    return std::move(layout_);
  }

 private:
  // Elements of less than a byte have no stretches that begin anywhere.
  [[nodiscard]] bool is_cut(const model::Tensor& tensor) const {
    return bytes_of(tensor) > part_bytes_ / kWholeShare && !policy::is_packed(tensor.dtype);
  }

  void place(const model::Tensor& tensor) {
    const bool cut = is_cut(tensor);
    const std::uint64_t each =
        (cut ? rounded_up(bytes_of(tensor), parts_) : bytes_of(tensor)) + bytes_behind(tensor.name);
    const auto least = [&] { return std::min_element(bytes_.begin(), bytes_.end()); };
    const bool fits =
        cut ? *std::max_element(bytes_.begin(), bytes_.end()) + each <= part_bytes_ : *least() + each <= part_bytes_;
    if (!fits && !is_empty_) {
      ++group_;
      std::fill(bytes_.begin(), bytes_.end(), 0);
    }
    is_empty_ = false;
    if (cut) {
      for (std::uint64_t& bytes : bytes_) bytes += each;
      const layout::Cut owner{.kind = layout::CutKind::kOwner, .axes = {kGroupAxis}, .owners = {group_}};
      add_rule(tensor.name, {owner, {.kind = layout::CutKind::kFlat, .axes = {kPartAxis}}});
      place_behind(tensor.name, owner);
    } else {
      const auto part = least();
      *part += each;
      const auto number = static_cast<std::uint64_t>(part - bytes_.begin());
      const layout::Cut owner{
          .kind = layout::CutKind::kOwner, .axes = {kGroupAxis, kPartAxis}, .owners = {group_ * parts_ + number}};
      add_rule(tensor.name, {owner});
      place_behind(tensor.name, owner);
    }
  }

  void add_rule(const std::string& name, std::vector<layout::Cut> cuts) {
    layout::PlacementRule rule{NamePattern::exact(name), {}};
    rule.placement.slots.front().cuts = std::move(cuts);
    layout_.rules.push_back(std::move(rule));
  }

  [[nodiscard]] std::uint64_t bytes_behind(std::string_view leader) const {
    const auto found = followers_.find(leader);
    std::uint64_t bytes = 0;
    if (found == followers_.end()) return bytes;
    for (const std::string& name : found->second) bytes += bytes_of(*skeleton_.find(name));
    return bytes;
  }

  void place_behind(std::string_view leader, const layout::Cut& owner) {
    const auto found = followers_.find(leader);
    if (found == followers_.end()) return;
    for (const std::string& name : found->second) add_rule(name, {owner});
  }

  const model::Skeleton& skeleton_;
  const Followers& followers_;
  std::set<std::string_view> is_follower_;
  std::uint64_t part_bytes_;
  std::uint64_t filled_bytes_ = 1;
  std::uint64_t parts_ = 1;           // of a group
  std::uint64_t group_ = 0;           // that is being filled
  bool is_empty_ = true;              // no tensor is placed
  std::vector<std::uint64_t> bytes_;  // by part of that group
  layout::Layout layout_;
};

}  // namespace

layout::Layout cut_into_parts(const model::Skeleton& skeleton, std::uint64_t part_bytes, const Followers& followers) {
  for (std::uint64_t bytes = std::max<std::uint64_t>(part_bytes, kWholeShare);; bytes *= 2) {
    if (auto layout = Cutter(skeleton, bytes, followers).run()) return *std::move(layout);
  }
}

}  // namespace lading::planner
