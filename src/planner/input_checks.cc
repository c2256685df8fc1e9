#include "planner/input_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/name_list.h"
#include "base/text.h"
#include "layout/presence.h"

namespace lading::planner {
namespace {

using layout::Cut;
using layout::CutKind;
using layout::Placement;

Error unexpected_key(const PlanInputs& inputs, const mapping::Resolved& resolved, const std::string& key) {
  Error error = Error(Code::kPlan, "the checkpoint has a tensor that the model does not have")
                    .of_tensor(key)
                    .in_file(inputs.catalog.files[inputs.catalog.find(key)->file].name)
                    .by_rule("R39")
                    .try_this("Map it to a tensor or ignore it (--mapping FILE), or list it in \"allow_unexpected\".");
  if (const auto note = resolved.key_notes.find(key); note != resolved.key_notes.end()) error.found = note->second;
  return error;
}

// Without owners, who only say where a tensor is, and promises that a cut is even.
std::vector<Cut> plain_cuts(std::vector<Cut> cuts) {
  std::erase_if(cuts, [](const Cut& cut) { return cut.kind == CutKind::kOwner; });
  for (Cut& cut : cuts) cut.even = false;
  return cuts;
}

bool have_same_slots(const Placement& one, const Placement& two) {
  const auto same_name = [](const layout::Slot& a, const layout::Slot& b) { return a.name == b.name; };
  return std::equal(one.slots.begin(), one.slots.end(), two.slots.begin(), two.slots.end(), same_name);
}

// Whether two placements are one but for owners.
bool are_alike(const Placement& one, const Placement& two) {
  if (one.device != two.device || one.fsdp_group != two.fsdp_group || !have_same_slots(one, two)) return false;
  return std::equal(one.slots.begin(), one.slots.end(), two.slots.begin(),
                    [](const auto& a, const auto& b) { return plain_cuts(a.cuts) == plain_cuts(b.cuts); });
}

// Pipeline stages that have one copy each are apart, and may cut it as they like; in one slot or in all.
bool go_together(const Placement& one, const Placement& two, const layout::Mesh& mesh) {
  const bool same_slots = have_same_slots(one, two);
  const bool same_place = same_slots && one.device == two.device && one.fsdp_group == two.fsdp_group;
  for (std::size_t i = 0; i < one.slots.size(); ++i) {
    for (std::size_t j = 0; j < two.slots.size(); ++j) {
      if (same_slots && i != j) continue;
      if (same_place && plain_cuts(one.slots[i].cuts) == plain_cuts(two.slots[j].cuts)) continue;
      if (can_meet(one.slots[i], two.slots[j], mesh)) return false;
    }
  }
  return true;
}

// The members of a tie class that are placed alike, but for owners.
struct Alike {
  std::vector<const Placement*> placements;  // each once
  std::vector<const Statement*> members;
  bool is_told = false;
};

std::vector<Alike> grouped(const std::vector<const Statement*>& members) {
  std::vector<Alike> groups;
  for (const Statement* member : members) {
    const Placement& placement = member->placement;
    const auto has_it = [&](const Alike& group) { return are_alike(*group.placements.front(), placement); };
    auto group = std::find_if(groups.begin(), groups.end(), has_it);
    if (group == groups.end()) group = groups.insert(groups.end(), Alike{});
    const auto is_same = [&](const Placement* other) { return *other == placement; };
    if (std::none_of(group->placements.begin(), group->placements.end(), is_same)) {
      group->placements.push_back(&placement);
    }
    group->members.push_back(member);
  }
  return groups;
}

bool go_together(const Alike& one, const Alike& two, const layout::Mesh& mesh) {
  return std::all_of(one.placements.begin(), one.placements.end(), [&](const Placement* a) {
    return std::all_of(two.placements.begin(), two.placements.end(),
                       [&](const Placement* b) { return go_together(*a, *b, mesh); });
  });
}

std::string text_of(const Alike& group) {
  constexpr std::size_t kMostNames = 4;
  std::string text;
  for (std::size_t i = 0; i < group.members.size() && i < kMostNames; ++i) {
    text += (i == 0 ? "" : ", ") + quote(group.members[i]->name);
  }
  if (group.members.size() > kMostNames) text += fmt::format(" and {} more", group.members.size() - kMostNames);
  const Placement& placement = *group.placements.front();
  text += placement.fsdp_group.empty() ? " (in no unit" : fmt::format(" (in unit {}", quote(placement.fsdp_group));
  return text + (placement.device == layout::DeviceRule::kCpu ? ", offloaded)" : ")");
}

// The members of one shared buffer (FSDP1), names of tie classes among them: layout's own check leaves these out.
class SharedBuffer {
 public:
  struct Member {
    const Statement* statement = nullptr;
    const Cut* cut = nullptr;
    StatementId tie_class = 0;  // its head
  };

  void add(const Member& member) { members_.push_back(member); }

  void check(Errors& errors) {
    const Member& first = members_.front();
    for (const Member& member : members_) {
      if (member.cut->axes == first.cut->axes && member.cut->group_elems == first.cut->group_elems) continue;
      errors.add(Error(Code::kPlan, fmt::format("the members of the shared buffer {} do not agree on its size and axes",
                                                quote(member.cut->flat_parameter)))
                     .of_tensor(member.statement->name)
                     .by_rule("R56")
                     .wanted(fmt::format("{} elements, like {}", first.cut->group_elems, quote(first.statement->name)))
                     .got(std::to_string(member.cut->group_elems))
                     .try_this(kOneName));
    }
    check_overlaps(errors);
  }

 private:
  static constexpr const char* kOneName =
      "Give the units of each pipeline stage their own names: one name is one buffer on all ranks.";

  void check_overlaps(Errors& errors) {
    std::stable_sort(members_.begin(), members_.end(), [](const Member& a, const Member& b) {
      return a.cut->group_offset_elems < b.cut->group_offset_elems;
    });
    const Member* before = nullptr;  // the one that reaches farthest
    for (const Member& member : members_) {
      const std::uint64_t elems = *member.statement->shape.num_elems();
      if (elems == 0) continue;
      const std::uint64_t begin = member.cut->group_offset_elems;
      const std::uint64_t end = before == nullptr ? 0 : end_of(*before);
      const bool is_same_place =
          before != nullptr && before->tie_class == member.tie_class && before->cut->group_offset_elems == begin;
      if (begin < end && !is_same_place) {
        errors.add(Error(Code::kPlan, fmt::format("the tensor overlaps {} in the shared buffer {}",
                                                  quote(before->statement->name), quote(member.cut->flat_parameter)))
                       .of_tensor(member.statement->name)
                       .by_rule("R11")
                       .wanted(fmt::format("a begin at {} or later", end))
                       .got(std::to_string(begin))
                       .try_this(kOneName));
      }
      if (begin + elems > end) before = &member;
    }
  }

  // check_cuts() saw that it is within the buffer.
  static std::uint64_t end_of(const Member& member) {
    return member.cut->group_offset_elems + *member.statement->shape.num_elems();
  }

  std::vector<Member> members_;
};

// Whether some rank that has the tensor has an accelerator, which its forward pass runs on.
bool is_with_an_accelerator(const layout::Layout& layout, const Placement& placement) {
  const layout::DeviceMap& devices = layout.devices;
  if (devices.list.empty()) return devices.type != layout::DeviceType::kCpu;
  for (std::uint64_t rank = 0; rank < devices.list.size(); ++rank) {
    if (devices.list[rank].type != layout::DeviceType::kCpu && is_on(placement, layout.mesh, rank)) return true;
  }
  return false;
}

}  // namespace

bool can_be_in_a_file(model::Kind kind) {
  return kind == model::Kind::kParameter || kind == model::Kind::kBuffer || kind == model::Kind::kExtraState;
}

std::string_view describe(model::Kind kind) {
  switch (kind) {
    case model::Kind::kParameter: return "parameter";
    case model::Kind::kBuffer: return "buffer";
    case model::Kind::kNonPersistentBuffer: return "non-persistent buffer";
    case model::Kind::kAttribute: return "plain attribute";
    case model::Kind::kExtraState: return "extra state";
  }
  return "tensor";
}

Errors check_keys(const PlanInputs& inputs, const mapping::Resolution& names, const std::set<std::string_view>& told,
                  Plan& plan) {
  Errors errors;
  const mapping::Resolved& resolved = names.resolved;
  const NameList allowed(inputs.policy.allow_unexpected);
  for (const auto& [key, rule] : resolved.unread) {
    if (!rule.empty()) {
      plan.ignored_keys.emplace_back(key, rule);
    } else if (allowed.matches(key)) {
      plan.unexpected_keys.push_back(key);
    } else if (inputs.policy.unexpected == policy::Strictness::kReport) {
      plan.unexpected_keys.push_back(key);
      plan.warnings.add(unexpected_key(inputs, resolved, key));
    } else if (names.settled && !told.contains(key)) {
      errors.add(unexpected_key(inputs, resolved, key));
    }
  }
  return errors;
}

Errors check_name_lists(const PlanInputs& inputs, Plan& plan) {
  Errors errors;
  const policy::Policy& policy = inputs.policy;
  // An allowance that is not needed is harmless; a value that is to be kept or handed in and is not there is lost.
  const auto check = [](std::string_view field, const std::vector<NamePattern>& patterns, const auto& named,
                        Errors& into) {
    std::unordered_set<std::string_view> names;
    if (!patterns.empty()) {
      for (const auto& one : named) names.insert(one.name);
    }
    for (const NamePattern& pattern : patterns) {
      const auto is_match = [&](const auto& one) { return pattern.matches(one.name); };
      if (pattern.is_one_name() ? names.contains(pattern.text) : std::any_of(named.begin(), named.end(), is_match))
        continue;
      into.add(Error(Code::kPolicy, fmt::format("{}: {} matches nothing", field, quote(pattern.text))).by_rule("R43"));
    }
  };
  const auto& tensors = inputs.skeleton.tensors;
  check("keep", policy.keep, tensors, errors);
  check("external", policy.external, tensors, errors);
  check("allow_missing", policy.allow_missing, tensors, plan.warnings);
  check("allow_mismatch", policy.allow_mismatch, tensors, plan.warnings);
  check("allow_unexpected", policy.allow_unexpected, inputs.catalog.tensors_of(0), plan.warnings);
  if (policy.subtree_dtypes.empty()) return errors;
  std::unordered_set<std::string_view> modules;  // and tensors
  for (const model::Tensor& t : tensors) {
    const std::string_view name = t.name;
    modules.insert(name);
    for (auto dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1))
      modules.insert(name.substr(0, dot));
  }
  for (const auto& [prefix, dtype] : policy.subtree_dtypes) {
    if (prefix.empty() || modules.contains(prefix)) continue;
    errors.add(Error(Code::kPolicy, fmt::format("subtree_dtypes: {} matches nothing", quote(prefix))).by_rule("R43"));
  }
  return errors;
}

Errors check_placements(const PlanInputs& inputs, const Decisions& decisions) {
  Errors errors;
  std::map<std::string_view, const Statement*> first_of_buffer;
  std::map<std::string_view, SharedBuffer> buffers;
  for (const StatementId i : decisions.plan.statements.ids()) {
    const Statement& s = decisions.plan.statements[i];
    if (decisions.tensors[i].is_misplaced) continue;
    const bool offloaded = s.placement.device == layout::DeviceRule::kCpu;
    if (offloaded && s.kind != model::Kind::kParameter && is_with_an_accelerator(inputs.layout, s.placement)) {
      errors.add(Error(Code::kPlan, "the buffer is offloaded to the CPU, but the forward pass needs it on the device")
                     .of_tensor(s.name)
                     .by_rule("R36")
                     .try_this("Offload parameters only: put a separate rule for buffers before this one."));
    }
    for (const layout::Slot& slot : s.placement.slots) {
      for (const Cut& cut : slot.cuts) {
        if (cut.kind != CutKind::kFlatGroup) continue;
        buffers[cut.flat_parameter].add({&s, &cut, decisions.tensors[i].head});
        if (decisions.tensors[i].is_refused) continue;
        const Statement& first = *first_of_buffer.try_emplace(cut.flat_parameter, &s).first->second;
        if (first.storage == s.storage && first.placement.device == s.placement.device) continue;
        errors.add(Error(Code::kPlan, fmt::format("the shared buffer {} holds tensors of different dtypes or devices",
                                                  quote(cut.flat_parameter)))
                       .of_tensor(s.name)
                       .by_rule("R27")
                       .wanted(fmt::format("{}, like {}", name(first.storage), quote(first.name)))
                       .got(std::string(name(s.storage)))
                       .try_this("Wrap them in separate units."));
      }
    }
  }
  for (auto& [name, buffer] : buffers) buffer.check(errors);
  return errors;
}

Errors check_tie_placements(const std::vector<const Statement*>& members, const layout::Mesh& mesh) {
  constexpr std::size_t kMostGroups = 8;
  std::vector<Alike> groups = grouped(members);
  std::size_t told = 0;
  for (std::size_t a = 0; a + 1 < groups.size() && told < kMostGroups; ++a) {
    for (std::size_t b = a + 1; b < groups.size() && told < kMostGroups; ++b) {
      if ((groups[a].is_told && groups[b].is_told) || go_together(groups[a], groups[b], mesh)) continue;
      for (Alike* group : {&groups[a], &groups[b]}) told += std::exchange(group->is_told, true) ? 0U : 1U;
    }
  }
  if (told == 0) return {};
  const Statement* first = nullptr;
  std::string found;
  for (const Alike& group : groups) {
    if (!group.is_told) continue;
    if (first == nullptr) first = group.members.front();
    found += (found.empty() ? "" : "; ") + text_of(group);
  }
  return Errors(Error(Code::kPlan, "the names of a tie class are placed differently")
                    .of_tensor(first->name)
                    .by_rule("R52")
                    .wanted("one device, one FSDP2 unit and the same cuts on every rank that has two of them")
                    .got(std::move(found))
                    .try_this("Give them one placement, and put them into one fully_shard call."));
}

Errors check_call_places(const PlanInputs& inputs, const Decisions& decisions) {
  Errors errors;
  const auto& statements = decisions.plan.statements;
  std::map<StatementId, std::vector<StatementId>> classes;  // by head; of those that are tied
  for (auto& members : decisions.tie_classes()) classes.emplace(members.front(), std::move(members));
  for (const StatementId i : statements.ids()) {
    if (errors.is_full()) break;
    const Statement& call = statements[decisions.tensors[i].head];
    if (call.provenance != Provenance::kCall || decisions.tensors[i].is_refused || decisions.tensors[i].is_misplaced)
      continue;
    for (const std::string& name : call.recipe.inputs) {
      const Statement* input = decisions.plan.find(name);
      if (input == nullptr) continue;  // call_order() tells it
      const auto number = statements.id_of(*input);
      // A tie class is one value: the input is there under any of its names.
      const auto tied = classes.find(decisions.tensors[number].head);
      const auto& members = tied == classes.end() ? std::vector<StatementId>{number} : tied->second;
      const auto is_misplaced = [&](StatementId m) { return decisions.tensors[m].is_misplaced; };
      if (std::any_of(members.begin(), members.end(), is_misplaced)) continue;
      std::vector<const Placement*> placements;
      placements.reserve(members.size());
      for (const StatementId m : members) placements.push_back(&statements[m].placement);
      const layout::RankWithout without = rank_without(statements[i].placement, placements, inputs.layout.mesh);
      if (without.is_known && !without.rank) continue;
      errors.add(Error(Code::kPlan, fmt::format("the tensor is computed from {}, which is on other ranks", quote(name)))
                     .of_tensor(statements[i].name)
                     .by_rule("R66")
                     .wanted("every input on every rank that has the result")
                     .got(without.is_known
                              ? fmt::format("rank {}, which has the result but not the input", *without.rank)
                              : "owners on too many ranks to check all of them")
                     .try_this("Put both on one pipeline stage, or supply the value (\"external\")."));
    }
  }
  return errors;
}

}  // namespace lading::planner
