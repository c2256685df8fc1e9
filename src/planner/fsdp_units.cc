#include "planner/fsdp_units.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "policy/policy.h"

namespace lading::planner {
namespace {

using layout::Cut;
using layout::CutKind;

// FSDP2's own cut of a member of a unit. Whatever else cuts a parameter did so before (R54), so it is the last
// one; owners only say who has the parameter at all.
Cut* cut_of_fsdp(Statement& s) {
  std::vector<Cut>& cuts = s.placement.slots.front().cuts;
  const auto last =
      std::find_if(cuts.rbegin(), cuts.rend(), [](const Cut& cut) { return cut.kind != CutKind::kOwner; });
  return last == cuts.rend() || last->kind != CutKind::kShard ? nullptr : &*last;
}

class UnitCheck {
 public:
  UnitCheck(const PlanInputs& inputs, Plan& plan) : inputs_(inputs), plan_(plan) {}

  Errors run() {
    std::vector<policy::GroupMember> members;
    for (const StatementId i : plan_.statements.ids()) {
      Statement& s = plan_.statements[i];
      // FSDP2 does not touch buffers, whatever pattern they come under.
      if (s.kind != model::Kind::kParameter || s.placement.fsdp_group.empty()) continue;
      members.push_back(
          {s.name, s.placement.fsdp_group, s.storage, s.compute, inputs_.skeleton.tensors[i.number()].requires_grad});
      if (!check_form(s)) continue;
      check_place(s);
      check_evenness(s);
    }
    errors_.add(policy::check_groups(inputs_.policy, members));
    return std::move(errors_);
  }

 private:
  [[nodiscard]] std::string place_of(Statement& s) const {
    std::string text;
    if (const Cut* cut = cut_of_fsdp(s)) {
      for (const std::size_t axis : cut->axes)
        text += (text.empty() ? "" : "+") + inputs_.layout.mesh.axes()[axis].name;
    }
    text = text.empty() ? "no shard" : "shards over " + text;
    return text + (s.placement.device == layout::DeviceRule::kCpu ? ", offloaded" : ", on the rank's device");
  }

  // fully_shard() raises for a parameter without dims, and knows no flat parts.
  bool check_form(const Statement& s) {
    const std::vector<Cut>& cuts = s.placement.slots.front().cuts;
    const bool is_flat = std::any_of(cuts.begin(), cuts.end(), [](const Cut& cut) {
      return cut.kind == CutKind::kFlat || cut.kind == CutKind::kFlatGroup;
    });
    if (s.shape.rank() > 0 && !is_flat) return true;
    errors_.add(Error(Code::kPlan,
                      fmt::format("FSDP2 cannot shard this parameter in the unit {}", quote(s.placement.fsdp_group)))
                    .of_tensor(s.name)
                    .by_rule("R53")
                    .wanted(is_flat ? "no cut, or a shard of a dim" : "a parameter of one dim or more")
                    .got(is_flat ? "a flat cut, as in ZeRO-3 and FSDP1" : "no dims")
                    .try_this(is_flat ? "Shard it by dim, or remove it from the unit."
                                      : "Make it a parameter of shape [1], or remove it from the unit."));
    return false;
  }

  // One process group and one device for a unit: all of it is gathered by one call.
  void check_place(Statement& s) {
    Statement& first = *first_of_unit_.try_emplace(s.placement.fsdp_group, &s).first->second;
    const std::string wanted = place_of(first);
    std::string found = place_of(s);
    if (found == wanted) return;
    errors_.add(
        Error(Code::kPlan, fmt::format("the FSDP2 unit {} has members with different shard axes or devices",
                                       quote(s.placement.fsdp_group)))
            .of_tensor(s.name)
            .by_rule("R27")
            .wanted(fmt::format("{}, like {}", wanted, quote(first.name)))
            .got(std::move(found))
            .try_this("Give each set of axes and devices its own unit: FSDP2 makes one unit per process group."));
  }

  void check_evenness(Statement& s) {
    Cut* cut = cut_of_fsdp(s);
    if (cut == nullptr || cut->dim == 0 || cut->even) return;
    cut->even = true;
    for (Error error : layout::check_cuts(s.shape, s.placement.slots.front().cuts, inputs_.layout.mesh)) {
      errors_.add(std::move(error).of_tensor(s.name).by_rule("R53").try_this(
          "Cut dim 0, or remove the parameter from the unit: FSDP2 cuts only dim 0 unevenly."));
    }
  }

  const PlanInputs& inputs_;
  Plan& plan_;
  std::map<std::string, Statement*, std::less<>> first_of_unit_;
  Errors errors_;
};

}  // namespace

Errors check_units(const PlanInputs& inputs, Plan& plan) { return UnitCheck(inputs, plan).run(); }

}  // namespace lading::planner
