#include "layout/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"

namespace lading::layout {
namespace {

const Placement& replicated() {
  static const Placement placement;
  return placement;
}

/// The members of one shared buffer.
class FlatParameter {
 public:
  void add(std::string_view tensor, const Shape& shape, const Cut& cut, Errors& errors) {
    if (!first_) first_ = cut;
    if (cut.axes != first_->axes || cut.group_elems != first_->group_elems) {
      errors.add(
          Error(Code::kLayout, fmt::format("the members of the shared buffer {} do not agree on its size and axes",
                                           quote(cut.flat_parameter)))
              .of_tensor(tensor)
              .by_rule("R56")
              .wanted(std::to_string(first_->group_elems))
              .got(std::to_string(cut.group_elems))
              .try_this(kOneName));
    }
    const std::uint64_t elems = shape.num_elems().value_or(0);
    if (elems > 0)
      members_.emplace(cut.group_offset_elems, Member{cut.group_offset_elems + elems, std::string(tensor)});
  }

  void check_overlaps(Errors& errors) const {
    std::uint64_t end = 0;
    const Member* before = nullptr;
    for (const auto& [begin, member] : members_) {
      if (before != nullptr && begin < end) {
        errors.add(Error(Code::kLayout, fmt::format("the tensor overlaps {} in the shared buffer {}",
                                                    quote(before->tensor), quote(first_->flat_parameter)))
                       .of_tensor(member.tensor)
                       .by_rule("R11")
                       .wanted(fmt::format("a begin at {} or later", end))
                       .got(std::to_string(begin))
                       .try_this(kOneName));
      }
      if (member.end >= end) {
        end = member.end;
        before = &member;
      }
    }
  }

 private:
  // Ranks are not told apart here: two stages may mean two buffers, and must say so.
  static constexpr const char* kOneName =
      "Give the units of each pipeline stage their own names: one name is one buffer on all ranks.";
  struct Member {
    std::uint64_t end;
    std::string tensor;
  };
  std::optional<Cut> first_;
  std::multimap<std::uint64_t, Member> members_;  // by where they begin
};

void check_devices(const Layout& layout, Errors& errors) {
  const DeviceMap& devices = layout.devices;
  if (!devices.list.empty() && devices.list.size() != layout.mesh.ranks()) {
    errors.add(Error(Code::kLayout, "the number of devices is not the number of ranks")
                   .by_rule("R34")
                   .wanted(std::to_string(layout.mesh.ranks()))
                   .got(std::to_string(devices.list.size())));
  }
  const auto check = [&](const Device& device) {
    if (const auto parsed = parse_device(device.text()); !parsed) errors.add(parsed.error());
  };
  for (const Device& device : devices.list) check(device);
  if (!devices.list.empty()) return;
  if (devices.per_node == 0) {
    errors.add(Error(Code::kLayout, "the number of devices per node is 0").by_rule("R34").wanted("1 or more").got("0"));
  } else {
    check(Device{devices.type, devices.per_node - 1});
  }
}

void check_slot_names(const PlacementRule& rule, Errors& errors) {
  std::set<std::string_view> names;
  const auto& slots = rule.placement.slots;
  bool good = !slots.empty() && slots.front().name.empty();
  for (const Slot& slot : slots) good = names.insert(slot.name).second && !find_invalid_utf8(slot.name) && good;
  if (good) return;
  errors.add(Error(
      Code::kLayout,
      fmt::format("the rule {} has wrong slots: the first must have no name, the others must have different names",
                  quote(rule.pattern.text))));
}

}  // namespace

const Placement& Layout::placement_of(std::string_view name) const {
  for (const PlacementRule& rule : rules) {
    if (rule.pattern.matches(name)) return rule.placement;
  }
  return replicated();
}

PlacementIndex::PlacementIndex(const Layout& layout) : layout_(&layout) {
  for (std::size_t i = 0; i < layout.rules.size(); ++i) {
    const NamePattern& pattern = layout.rules[i].pattern;
    if (pattern.is_one_name()) {
      exact_.emplace(pattern.text, i);
    } else {
      wild_.push_back(i);
    }
  }
}

const Placement& PlacementIndex::of(std::string_view name) const {
  const auto& rules = layout_->rules;
  const auto exact = exact_.find(name);
  const std::size_t found = exact == exact_.end() ? rules.size() : exact->second;
  for (const std::size_t i : wild_) {
    if (i >= found) break;
    if (rules[i].pattern.matches(name)) return rules[i].placement;
  }
  return found == rules.size() ? replicated() : rules[found].placement;
}

Errors check_writable(const Layout& layout) {
  Errors errors = check_mesh(layout.mesh);
  if (!errors.empty()) return errors;
  check_devices(layout, errors);
  for (const PlacementRule& rule : layout.rules) {
    check_slot_names(rule, errors);
    for (const Slot& slot : rule.placement.slots) {
      for (const Cut& cut : slot.cuts) {
        if (std::all_of(cut.axes.begin(), cut.axes.end(),
                        [&](std::size_t a) { return a < layout.mesh.axes().size(); })) {
          continue;
        }
        errors.add(Error(Code::kLayout, fmt::format("the rule {} has a cut over an axis that the mesh does not have",
                                                    quote(rule.pattern.text)))
                       .wanted(fmt::format("an axis below {}", layout.mesh.axes().size())));
      }
    }
  }
  return errors;
}

Errors check_layout(const Layout& layout, const std::vector<TensorToPlace>& tensors) {
  Errors errors = check_mesh(layout.mesh);
  if (!errors.empty()) return errors;
  check_devices(layout, errors);
  for (const PlacementRule& rule : layout.rules) check_slot_names(rule, errors);

  const PlacementIndex index(layout);
  std::map<std::string_view, FlatParameter> flat_parameters;
  for (const TensorToPlace& tensor : tensors) {
    for (const Slot& slot : index.of(tensor.name).slots) {
      const Errors problems = check_cuts(tensor.shape, slot.cuts, layout.mesh);
      for (Error problem : problems) errors.add(std::move(problem).of_tensor(tensor.name));
      if (!problems.empty()) continue;
      for (const Cut& cut : slot.cuts) {
        if (cut.kind == CutKind::kFlatGroup && !tensor.is_alias)
          flat_parameters[cut.flat_parameter].add(tensor.name, tensor.shape, cut, errors);
      }
    }
  }
  for (const auto& [name, flat_parameter] : flat_parameters) flat_parameter.check_overlaps(errors);

  std::set<std::string_view> names;
  if (!layout.rules.empty()) {
    for (const TensorToPlace& tensor : tensors) names.insert(names.end(), tensor.name);  // mostly sorted
  }
  for (const PlacementRule& rule : layout.rules) {
    const NamePattern& pattern = rule.pattern;
    const bool used = pattern.is_one_name()
                          ? names.contains(pattern.text)
                          : std::any_of(names.begin(), names.end(), [&](auto name) { return pattern.matches(name); });
    if (used) continue;
    errors.add(Error(Code::kLayout, fmt::format("the rule {} matches no tensor", quote(rule.pattern.text)))
                   .by_rule("R43")
                   .try_this("Correct the pattern, or remove the rule."));
  }
  return errors;
}

}  // namespace lading::layout
