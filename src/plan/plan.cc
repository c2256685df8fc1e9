#include "plan/plan.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <vector>

#include "base/loop_nest.h"

namespace lading::plan {

std::uint64_t Transfer::elems() const { return run_elems * rounds_of(loops); }

std::uint64_t scale_memory_bytes(const Plan& plan, const ScaleRead& read) {
  const std::optional<CodeType> code = plan.sources[read.source].code();
  std::uint64_t bytes = read.bytes.size_bytes();
  if (code) bytes += read.zeros.size_bytes() * (8 / bits(*code));
  const SourceId groups = plan.sources[read.source].scaling->groups;
  if (!groups.is_none()) bytes += plan.sources[groups].bytes.size_bytes();
  return bytes;
}

std::uint64_t scale_memory_bytes(const Plan& plan, const RankPlan& rank) {
  std::uint64_t all_bytes = 0;
  for (const ScaleRead& read : rank.scale_reads) all_bytes += scale_memory_bytes(plan, read);
  if (rank.batch_ends.empty() || all_bytes == 0) return all_bytes;
  // By source: the first and the last batch that takes its elements.
  struct Batches {
    std::size_t first = 0;
    std::size_t last = 0;
  };
  std::map<SourceId, Batches> taken;
  std::size_t batch = 0;
  for (std::size_t r = 0; r < rank.reads.size(); ++r) {
    while (batch + 1 < rank.batch_ends.size() && r >= rank.batch_ends[batch]) ++batch;
    for (const TransferRef& ref : rank.reads[r].transfers) {
      const SourceId source = rank.at(ref).source;
      if (plan.sources[source].scaling) taken.try_emplace(source, Batches{batch, batch}).first->second.last = batch;
    }
  }
  // How much more is in memory while a batch runs than while the one before it does.
  std::vector<std::uint64_t> more(rank.batch_ends.size() + 1);
  std::vector<std::uint64_t> less(more.size());
  for (const ScaleRead& read : rank.scale_reads) {
    const auto found = taken.find(read.source);
    if (found == taken.end()) continue;
    const std::uint64_t bytes = scale_memory_bytes(plan, read);
    more[found->second.first == 0 ? 0 : found->second.first - 1] += bytes;
    less[found->second.last + 1] += bytes;
  }
  std::uint64_t most = 0;
  std::uint64_t now = 0;
  for (std::size_t b = 0; b < rank.batch_ends.size(); ++b) {
    now += more[b];
    now -= less[b];
    most = std::max(most, now);
  }
  return most;
}

const Statement* Plan::find(std::string_view name) const {
  const auto found = std::lower_bound(statements.begin(), statements.end(), name,
                                      [](const Statement& s, std::string_view n) { return s.name < n; });
  return found != statements.end() && found->name == name ? &*found : nullptr;
}

}  // namespace lading::plan
