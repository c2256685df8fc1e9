#include "plan/input_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "plan/name_list.h"

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

Placement without_owners(Placement placement) {
  for (layout::Slot& slot : placement.slots) {
    std::erase_if(slot.cuts, [](const Cut& cut) { return cut.kind == CutKind::kOwner; });
  }
  return placement;
}

// Pipeline stages that have one copy each are apart.
bool never_together(const Placement& one, const Placement& two) {
  const auto same_name = [](const layout::Slot& a, const layout::Slot& b) { return a.name == b.name; };
  if (!std::equal(one.slots.begin(), one.slots.end(), two.slots.begin(), two.slots.end(), same_name)) return false;
  for (const Cut& a : one.slots.front().cuts) {
    for (const Cut& b : two.slots.front().cuts) {
      if (a.kind != CutKind::kOwner || b.kind != CutKind::kOwner || a.axes != b.axes) continue;
      const auto also_owns = [&](std::uint64_t owner) {
        return std::find(b.owners.begin(), b.owners.end(), owner) != b.owners.end();
      };
      if (std::none_of(a.owners.begin(), a.owners.end(), also_owns)) return true;
    }
  }
  return false;
}

}  // namespace

bool can_be_in_a_file(model::Kind kind) {
  return kind == model::Kind::kParameter || kind == model::Kind::kBuffer || kind == model::Kind::kExtraState;
}

Errors check_keys(const PlanInputs& inputs, const mapping::Resolved& resolved, Plan& plan) {
  Errors errors;
  const NameList allowed(inputs.policy.allow_unexpected);
  for (const auto& [key, rule] : resolved.unread) {
    const model::Tensor* tensor = inputs.skeleton.find(key);
    if (!rule.empty()) {
      plan.ignored_keys.emplace_back(key, rule);
    } else if (tensor != nullptr && !can_be_in_a_file(tensor->kind)) {
      plan.ignored_keys.emplace_back(key, "non-persistent");
    } else if (allowed.matches(key)) {
      plan.unexpected_keys.push_back(key);
    } else if (inputs.policy.unexpected == policy::Strictness::kReport) {
      plan.unexpected_keys.push_back(key);
      plan.warnings.add(unexpected_key(inputs, resolved, key));
    } else {
      errors.add(unexpected_key(inputs, resolved, key));
    }
  }
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

Errors check_placements(const PlanInputs& inputs, const Plan& plan) {
  Errors errors;
  const bool has_accelerators = inputs.layout.devices.of(0).type != "cpu";
  std::map<std::string_view, const Statement*> first_of_unit;
  for (const Statement& s : plan.statements) {
    const bool offloaded = s.placement.device == layout::DeviceRule::kCpu;
    if (offloaded && has_accelerators && s.kind != model::Kind::kParameter) {
      errors.add(Error(Code::kPlan, "a buffer is offloaded to the CPU, and the forward pass needs it on the device")
                     .of_tensor(s.name)
                     .by_rule("R36")
                     .try_this("Offload parameters only: give buffers a rule of their own, before this one"));
    }
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

Errors check_tie_placements(const std::vector<const Statement*>& members) {
  Errors errors;
  for (std::size_t a = 0; a + 1 < members.size(); ++a) {
    for (std::size_t b = a + 1; b < members.size(); ++b) {
      const Placement& one = members[a]->placement;
      const Placement& two = members[b]->placement;
      if (never_together(one, two) || without_owners(one) == without_owners(two)) continue;
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

}  // namespace lading::plan
