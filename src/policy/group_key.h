// What parameters of one FSDP2 unit must have in common, and how a problem lists those that do not (R27).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lading/dtype.h"
#include "policy/policy.h"

namespace lading::policy {

struct GroupKey {
  DType storage = DType::kF32;
  DType compute = DType::kF32;

  friend bool operator==(const GroupKey&, const GroupKey&) = default;
  friend bool operator<(const GroupKey& a, const GroupKey& b) {
    return a.storage != b.storage ? a.storage < b.storage : a.compute < b.compute;
  }
  /// "F32 computed in BF16"
  [[nodiscard]] std::string text() const;
};

inline GroupKey key_of(const GroupMember& member) { return {member.storage, member.compute}; }

inline std::string_view parent_of(std::string_view name) {
  const auto dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

using Members = std::vector<const GroupMember*>;

enum class Listing : std::uint8_t { kAll, kSome };

[[nodiscard]] std::map<GroupKey, std::vector<std::string_view>> names_by_key(const Members& members);
/// `BF16: "a", "b"; F32: "c"`
[[nodiscard]] std::string list_by_key(const Members& members, Listing listing);
/// Parameters of one module that would have to be in different units.
[[nodiscard]] Error inseparable_siblings(std::string_view owner, const Members& siblings);

}  // namespace lading::policy
