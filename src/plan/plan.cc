#include "plan/plan.h"

#include <algorithm>

#include "base/loop_nest.h"

namespace lading::plan {

std::uint64_t Transfer::elems() const { return run_elems * rounds_of(loops); }

const Statement* Plan::find(std::string_view name) const {
  const auto found = std::lower_bound(statements.begin(), statements.end(), name,
                                      [](const Statement& s, std::string_view n) { return s.name < n; });
  return found != statements.end() && found->name == name ? &*found : nullptr;
}

}  // namespace lading::plan
