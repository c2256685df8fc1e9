// FSDP2 units that there are: one storage and one compute dtype each (R27).
//
// torch 2.13 asks trainable parameters only for one storage dtype (FSDPParamGroup._init_mp_dtypes), but gathers
// every floating member in the unit's param_dtype (FSDPParam.init_dtype_attrs), float8 payloads included. It
// reduces all gradients of a unit in the mixed-precision policy's one reduce_dtype, so that needs no check.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/text.h"
#include "policy/group_key.h"
#include "policy/policy.h"

namespace lading::policy {
namespace {

enum class Among : std::uint8_t { kAll, kTrainable };

std::map<std::string_view, Members> by_group(const std::vector<GroupMember>& members, Among among) {
  std::map<std::string_view, Members> groups;
  for (const GroupMember& member : members) {
    if (among == Among::kAll || member.requires_grad) groups[member.group].push_back(&member);
  }
  for (auto& [group, list] : groups) {
    std::sort(list.begin(), list.end(), [](const GroupMember* a, const GroupMember* b) { return a->name < b->name; });
  }
  return groups;
}

// Modules that own parameters of several keys themselves: no unit can be drawn between those.
Errors inseparable(const Members& members) {
  std::map<std::string_view, Members> by_owner;
  for (const GroupMember* member : members) by_owner[parent_of(member->name)].push_back(member);
  Errors errors;
  for (const auto& [owner, siblings] : by_owner) {
    if (names_by_key(siblings).size() > 1) errors.add(inseparable_siblings(owner, siblings));
  }
  return errors;
}

// What FSDP2 gathers a unit in: the dtype of what trains; of a frozen unit, the policy's if anything wants it.
DType gathered_in(const Policy& policy, const Members& members) {
  const auto trains = [](const GroupMember* member) { return member->requires_grad; };
  if (const auto found = std::find_if(members.begin(), members.end(), trains); found != members.end())
    return (*found)->compute;
  const auto as_policy = [&](const GroupMember* member) { return member->compute == *policy.compute_dtype; };
  const bool any = std::any_of(members.begin(), members.end(), as_policy);
  return any ? *policy.compute_dtype : members.front()->compute;
}

// Members that FSDP2 would cast to another dtype than they are to be computed in. Integers it leaves alone.
Errors misgathered(const Policy& policy, std::string_view group, Members members) {
  std::erase_if(members, [](const GroupMember* member) { return class_of(member->storage) != DTypeClass::kFloat; });
  if (members.empty()) return {};
  const DType unit = gathered_in(policy, members);
  std::erase_if(members, [&](const GroupMember* member) { return member->compute == unit; });
  if (members.empty()) return {};
  std::string remedy = "Move them to a module that is its own unit, or exclude them from all units (ignored_params).";
  if (policy.compute_record == ComputeRecord::kCheckpoint) {
    remedy += " If they differ only in the checkpoint's dtype, set \"compute_record\": \"ignore\".";
  }
  return Error(Code::kDType,
               fmt::format(
                   "FSDP2 would gather frozen parameters of the unit {} in {}, but they are computed in another dtype",
                   quote(group), name(unit)))
      .of_tensor(members.front()->name)
      .by_rule("R27")
      .wanted(fmt::format("{} for all of the unit", name(unit)))
      .got(list_by_key(members, Listing::kSome))
      .try_this(std::move(remedy));
}

}  // namespace

std::string GroupKey::text() const {
  return storage == compute ? std::string(name(storage))
                            : fmt::format("{} computed in {}", name(storage), name(compute));
}

std::map<GroupKey, std::vector<std::string_view>> names_by_key(const Members& members) {
  std::map<GroupKey, std::vector<std::string_view>> names;
  for (const GroupMember* member : members) names[key_of(*member)].push_back(member->name);
  return names;
}

std::string list_by_key(const Members& members, Listing listing) {
  constexpr std::size_t kSome = 5;
  std::string text;
  for (const auto& [key, names] : names_by_key(members)) {
    text += fmt::format("{}{}: ", text.empty() ? "" : "; ", key.text());
    const std::size_t shown = listing == Listing::kAll ? names.size() : std::min(kSome, names.size());
    for (std::size_t i = 0; i < shown; ++i) text += (i > 0 ? ", " : "") + quote(names[i]);
    if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  }
  return text;
}

Error inseparable_siblings(std::string_view owner, const Members& siblings) {
  return Error(Code::kDType, fmt::format("parameters of the module {} differ in dtype, and FSDP2 cannot separate "
                                         "parameters of one module",
                                         quote(owner)))
      .of_tensor(siblings.front()->name)
      .by_rule("R27")
      .wanted("one storage and one compute dtype")
      .got(list_by_key(siblings, Listing::kAll))
      .try_this("Request one dtype for them, pin all or none of them, or move some of them to another module.");
}

Errors check_groups(const Policy& policy, const std::vector<GroupMember>& members) {
  Errors errors;
  const auto trainable = by_group(members, Among::kTrainable);
  if (policy.compute_dtype) {
    for (const auto& [group, list] : by_group(members, Among::kAll)) {
      const auto found = trainable.find(group);
      const bool is_mixed = found != trainable.end() && names_by_key(found->second).size() > 1;  // told below
      if (!group.empty() && !is_mixed) errors.add(misgathered(policy, group, list));
    }
  }
  for (const auto& [group, list] : trainable) {
    if (group.empty() || names_by_key(list).size() < 2) continue;
    Errors siblings = inseparable(list);
    const DType storage = list.front()->storage;
    const auto same_storage = [&](const GroupMember* member) { return member->storage == storage; };
    const bool only_compute = std::all_of(list.begin(), list.end(), same_storage);
    Error mixed =
        Error(Code::kDType,
              fmt::format("the FSDP2 unit {} mixes trainable parameters of several dtypes: {}", quote(group),
                          only_compute ? "it would compute all of them in one" : "its first forward would fail"))
            .of_tensor(list.front()->name)
            .by_rule("R27")
            .wanted("one storage and one compute dtype")
            .got(list_by_key(list, Listing::kSome));
    if (siblings.empty()) mixed.remedy = "Shard by dtype (shard_by_dtype), so that each dtype has its own unit.";
    if (only_compute && policy.compute_record == ComputeRecord::kCheckpoint) {
      mixed.remedy += mixed.remedy.empty() ? "" : " ";
      mixed.remedy += "If they differ only in the checkpoint's dtype, set \"compute_record\": \"ignore\".";
    }
    mixed.remedy += mixed.remedy.empty() ? "" : " ";
    mixed.remedy += "Give units of different pipeline stages different names: one fsdp_group is one unit on all ranks.";
    errors.add(std::move(mixed));
    errors.add(std::move(siblings));
  }
  return errors;
}

}  // namespace lading::policy
