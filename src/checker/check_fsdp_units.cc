#include "checker/check_fsdp_units.h"

#include <fmt/format.h>

#include <map>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "checker/problem.h"

namespace lading::checker {
namespace {

struct FsdpUnit {
  const Statement* first = nullptr;
  const Statement* cast = nullptr;  // computed in another dtype than it is stored in
  std::map<DType, const Statement*> computed;
};

// FSDP2's own: it cuts what every other cut has left (R54).
const layout::Cut* last_shard(const Statement& s) {
  const layout::Cut* last = nullptr;
  for (const layout::Cut& cut : s.placement.slots.front().cuts) {
    if (cut.kind != layout::CutKind::kOwner) last = &cut;
  }
  return last != nullptr && last->kind == layout::CutKind::kShard ? last : nullptr;
}

}  // namespace

void check_fsdp_units(const Plan& plan, Errors& errors) {
  const auto add = [&](Error error, const Statement& s) { errors.add(std::move(error).of_tensor(s.name)); };
  std::map<std::string_view, FsdpUnit> units;
  for (const Statement& s : plan.statements) {
    if (s.kind != model::Kind::kParameter || s.placement.fsdp_group.empty() || s.placement.slots.empty()) continue;
    FsdpUnit& unit = units[s.placement.fsdp_group];
    if (unit.first == nullptr) unit.first = &s;
    const layout::Cut* const mine = last_shard(s);
    const layout::Cut* const theirs = last_shard(*unit.first);
    const bool same_axes = mine == nullptr || theirs == nullptr ? mine == theirs : mine->axes == theirs->axes;
    if (!same_axes || s.placement.device != unit.first->placement.device) {
      add(problem(fmt::format("the tensor and {} are in one FSDP2 unit, but on different axes or devices",
                              quote(unit.first->name)),
                  "R27"),
          s);
    }
    if (mine != nullptr && mine->dim > 0 && !mine->even) {
      add(problem("FSDP2 cuts only dim 0 unevenly, and the plan does not say that this cut is even", "R53"), s);
    }
    if (class_of(s.storage) != DTypeClass::kFloat) continue;
    unit.computed.emplace(s.compute, &s);
    if (s.compute != s.storage) unit.cast = &s;
  }
  for (const auto& [group, unit] : units) {
    if (unit.cast == nullptr || unit.computed.size() == 1) continue;
    for (const auto& [dtype, other] : unit.computed) {
      if (dtype == unit.cast->compute) continue;
      add(problem(
              fmt::format("FSDP2 would cast the tensor to the dtype of {} of the same unit", quote(unit.cast->name)),
              "R27")
              .wanted(std::string(name(unit.cast->compute)))
              .got(std::string(name(dtype))),
          *other);
    }
  }
}

}  // namespace lading::checker
