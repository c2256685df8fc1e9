#include "plan/plan.h"

#include <algorithm>

#include "base/loop_nest.h"

namespace lading::plan {

std::uint64_t Transfer::elems() const { return run_elems * rounds_of(loops); }

std::uint64_t scale_memory_bytes(const Plan& plan, const RankPlan& rank) {
  std::uint64_t bytes = 0;
  for (const ScaleRead& read : rank.scale_reads) {
    const std::optional<CodeType> code = plan.sources[read.source].code();
    bytes += read.bytes.size_bytes();
    if (code) bytes += read.zeros.size_bytes() * (8 / bits(*code));
    const SourceId groups = plan.sources[read.source].scaling->groups;
    if (!groups.is_none()) bytes += plan.sources[groups].bytes.size_bytes();
  }
  return bytes;
}

const Statement* Plan::find(std::string_view name) const {
  const auto found = std::lower_bound(statements.begin(), statements.end(), name,
                                      [](const Statement& s, std::string_view n) { return s.name < n; });
  return found != statements.end() && found->name == name ? &*found : nullptr;
}

}  // namespace lading::plan
