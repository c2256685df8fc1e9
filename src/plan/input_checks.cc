#include "plan/input_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "plan/name_list.h"
#include "plan/presence.h"

namespace lading::plan {
namespace {

using layout::Cut;
using layout::CutKind;
using layout::Placement;

Error unexpected_key(const PlanInputs& inputs, const mapping::Resolved& resolved, const std::string& key) {
  Error error = Error(Code::kPlan, "the checkpoint has a tensor that the model does not have")
                    .of_tensor(key)
                    .in_file(inputs.catalog.files[inputs.catalog.find(key)->file].name)
                    .by_rule("R39")
                    .try_this("Map it, ignore it by a rule, or allow it (allow_unexpected)");
  if (const auto note = resolved.key_notes.find(key); note != resolved.key_notes.end()) error.found = note->second;
  return error;
}

std::vector<Cut> without_owners(std::vector<Cut> cuts) {
  std::erase_if(cuts, [](const Cut& cut) { return cut.kind == CutKind::kOwner; });
  return cuts;
}

// Pipeline stages that have one copy each are apart, and may cut it as they like; in one slot or in all.
bool go_together(const Placement& one, const Placement& two, const layout::Mesh& mesh) {
  const auto same_name = [](const layout::Slot& a, const layout::Slot& b) { return a.name == b.name; };
  if (!std::equal(one.slots.begin(), one.slots.end(), two.slots.begin(), two.slots.end(), same_name)) return false;
  const bool same_cuts = [&] {
    for (std::size_t i = 0; i < one.slots.size(); ++i) {
      const layout::Slot& a = one.slots[i];
      const layout::Slot& b = two.slots[i];
      if (without_owners(a.cuts) != without_owners(b.cuts) && can_meet(a, b, mesh)) return false;
    }
    return true;
  }();
  if (!same_cuts) return false;
  if (one.device == two.device && one.fsdp_group == two.fsdp_group) return true;
  for (std::size_t i = 0; i < one.slots.size(); ++i) {
    if (can_meet(one.slots[i], two.slots[i], mesh)) return false;
  }
  return true;
}

}  // namespace

bool can_be_in_a_file(model::Kind kind) {
  return kind == model::Kind::kParameter || kind == model::Kind::kBuffer || kind == model::Kind::kExtraState;
}

Errors check_keys(const PlanInputs& inputs, const mapping::Resolution& names, Plan& plan) {
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
    } else if (names.settled) {
      errors.add(unexpected_key(inputs, resolved, key));
    }
  }
  if (!names.problems.empty()) return errors;
  const bool both_have_tensors = !inputs.catalog.tensors.empty() && !inputs.skeleton.tensors.empty();
  if (resolved.expressions.empty() && both_have_tensors) {
    errors.add(Error(Code::kPlan, "the checkpoint and the model have no tensor in common")
                   .by_rule("R39")
                   .wanted(fmt::format("names like {}", quote(inputs.skeleton.tensors.front().name)))
                   .got(fmt::format("names like {}", quote(inputs.catalog.tensors.front().name)))
                   .try_this("It is probably another model's checkpoint, or its names need a mapping"));
  }
  return errors;
}

Errors check_name_lists(const PlanInputs& inputs, Plan& plan) {
  Errors errors;
  const policy::Policy& policy = inputs.policy;
  // An allowance that is not needed is harmless; a value that is to be kept or handed in and is not there is lost.
  const auto check = [&](std::string_view field, const std::vector<std::string>& patterns, const auto& named,
                         Errors& into) {
    for (const std::string& pattern : patterns) {
      const auto is_match = [&](const auto& one) { return layout::matches(pattern, one.name); };
      if (std::any_of(named.begin(), named.end(), is_match)) continue;
      into.add(Error(Code::kPolicy, fmt::format("{}: {} matches nothing", field, quote(pattern))).by_rule("R43"));
    }
  };
  const auto& tensors = inputs.skeleton.tensors;
  check("keep", policy.keep, tensors, errors);
  check("external", policy.external, tensors, errors);
  check("allow_missing", policy.allow_missing, tensors, plan.warnings);
  check("allow_mismatch", policy.allow_mismatch, tensors, plan.warnings);
  check("allow_unexpected", policy.allow_unexpected, inputs.catalog.tensors, plan.warnings);
  for (const auto& [prefix, dtype] : policy.subtree_dtypes) {
    const auto is_under = [&, module = std::string_view(prefix)](const model::Tensor& t) {
      return model::is_beneath(t.name, module);
    };
    if (std::any_of(tensors.begin(), tensors.end(), is_under)) continue;
    errors.add(Error(Code::kPolicy, fmt::format("subtree_dtypes: {} matches nothing", quote(prefix))).by_rule("R43"));
  }
  return errors;
}

Errors check_placements(const PlanInputs& inputs, const Decisions& decisions) {
  Errors errors;
  const bool has_accelerators = inputs.layout.devices.of(0).type != "cpu";
  std::map<std::string_view, const Statement*> first_of_unit;
  for (std::size_t i = 0; i < decisions.plan.statements.size(); ++i) {
    const Statement& s = decisions.plan.statements[i];
    if (decisions.is_misplaced[i]) continue;
    const bool offloaded = s.placement.device == layout::DeviceRule::kCpu;
    if (offloaded && has_accelerators && s.kind != model::Kind::kParameter) {
      errors.add(Error(Code::kPlan, "a buffer is offloaded to the CPU, and the forward pass needs it on the device")
                     .of_tensor(s.name)
                     .by_rule("R36")
                     .try_this("Offload parameters only: give buffers a rule of their own, before this one"));
    }
    if (decisions.is_refused[i]) continue;
    for (const layout::Slot& slot : s.placement.slots) {
      for (const Cut& cut : slot.cuts) {
        if (cut.kind != CutKind::kFlatGroup) continue;
        const Statement& first = *first_of_unit.try_emplace(cut.unit, &s).first->second;
        if (first.storage == s.storage && first.placement.device == s.placement.device) continue;
        errors.add(Error(Code::kPlan, fmt::format("the shared buffer {} holds tensors of different dtypes or devices",
                                                  quote(cut.unit)))
                       .of_tensor(s.name)
                       .by_rule("R27")
                       .wanted(fmt::format("{}, like {}", name(first.storage), quote(first.name)))
                       .got(std::string(name(s.storage)))
                       .try_this("Wrap them in units of their own"));
      }
    }
  }
  return errors;
}

Errors check_tie_placements(const std::vector<const Statement*>& members, const layout::Mesh& mesh) {
  Errors errors;
  for (std::size_t a = 0; a + 1 < members.size(); ++a) {
    for (std::size_t b = a + 1; b < members.size(); ++b) {
      const Placement& one = members[a]->placement;
      const Placement& two = members[b]->placement;
      if (go_together(one, two, mesh)) continue;
      const bool one_unit = one.fsdp_group == two.fsdp_group;
      errors.add(
          Error(Code::kPlan, fmt::format("it is tied to {}, but they are placed differently", quote(members[b]->name)))
              .of_tensor(members[a]->name)
              .by_rule("R52")
              .wanted("one placement and one FSDP2 unit for a tie class")
              .got(one_unit ? "different cuts or devices"
                            : fmt::format("units {} and {}", quote(one.fsdp_group), quote(two.fsdp_group)))
              .try_this("Put both into one fully_shard call"));
    }
  }
  return errors;
}

Errors check_call_places(const PlanInputs& inputs, const Decisions& decisions) {
  Errors errors;
  const auto& statements = decisions.plan.statements;
  for (std::size_t i = 0; i < statements.size() && !errors.is_full(); ++i) {
    const Statement& call = statements[decisions.class_of[i]];
    if (call.provenance != Provenance::kCall || decisions.is_refused[i] || decisions.is_misplaced[i]) continue;
    for (const std::string& name : call.recipe.inputs) {
      const Statement* input = decisions.plan.find(name);
      if (input == nullptr) continue;  // call_order() tells it
      if (decisions.is_misplaced[static_cast<std::size_t>(input - statements.data())]) continue;
      const auto rank = rank_without(statements[i].placement, input->placement, inputs.layout.mesh);
      if (!rank) continue;
      errors.add(Error(Code::kPlan, fmt::format("it is computed from {}, which is on other ranks", quote(name)))
                     .of_tensor(statements[i].name)
                     .by_rule("R66")
                     .wanted("every input on every rank that has the result")
                     .got(fmt::format("rank {}, which has the result and not the input", *rank))
                     .try_this("Put both on one pipeline stage, or hand the value in (external)"));
    }
  }
  return errors;
}

}  // namespace lading::plan
