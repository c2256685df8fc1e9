#include "planner/save/choose_writers.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/element_bytes.h"
#include "base/loop_nest.h"

namespace lading::planner {

// 1. Every transfer of every rank is turned round: a candidate, which says what bytes of a key its rank can write.
// 2. Candidates of the same bytes are replicas of each other, and form a group. Nearly always the groups of a key are
//    disjoint. If they are not (a rank holds half of what another one holds whole), they are cut into runs, and each
//    run has one holder.
// 3. Groups of one rank are that rank's. The others go, the largest first, to the rank that has the least to write; a
//    large contiguous one is cut among its ranks.
namespace {

using plan::Destination;
using plan::DestinationId;
using plan::Plan;
using plan::RankPlan;
using plan::RankWrites;
using plan::Source;
using plan::SourceId;
using plan::Transfer;
using plan::TransferRef;
using plan::Write;

// A replicated run below this is not cut: what is saved by balance is lost by short writes.
constexpr std::uint64_t kLeastPartBytes = 4ULL << 20;
// Parts begin at multiples of this, from the run's begin: whole bytes of packed elements, too.
constexpr std::uint64_t kPartElems = 64ULL << 10;

struct Candidate {
  std::uint32_t rank = 0;  // into Plan::ranks
  Write write;
};

// What bytes of the file a write covers: its begin, its run, then count and stride of each loop, those taken in that
// go on where the run ends. Equal for writes that cover the same bytes, whatever the memory looks like.
using Covered = std::vector<std::uint64_t>;

struct Group {
  std::vector<Candidate> candidates;  // one of a rank, by rank
  std::uint64_t elems = 0;
  std::uint64_t bytes = 0;
};

std::uint64_t file_stride(const ByteLoop& loop) { return loop.target_stride_bytes; }

Write turned_round(const Source& source, DType storage, const Transfer& transfer, const TransferRef& ref) {
  Write write{ref, transfer.target_begin_bytes, transfer.source_begin_bytes, transfer.run_elems, {}};
  for (const ByteLoop& loop : transfer.loops) {
    if (loop.count != 1) write.loops.push_back({loop.count, loop.target_stride_bytes, loop.source_stride_bytes});
  }
  std::stable_sort(write.loops.begin(), write.loops.end(), [](const ByteLoop& a, const ByteLoop& b) {
    return std::pair(file_stride(a), a.source_stride_bytes) > std::pair(file_stride(b), b.source_stride_bytes);
  });
  while (!write.loops.empty()) {
    const ByteLoop& inner = write.loops.back();
    const bool goes_on = inner.target_stride_bytes == bytes_of_elems(write.run_elems, source.dtype) &&
                         inner.source_stride_bytes == bytes_of_elems(write.run_elems, storage);
    if (!goes_on) break;
    write.run_elems *= inner.count;
    write.loops.pop_back();
  }
  return write;
}

Covered covered_by(const Write& write, const Source& source) {
  std::uint64_t run = bytes_of_elems(write.run_elems, source.dtype);
  std::vector<ByteLoop> loops = write.loops;
  while (!loops.empty() && file_stride(loops.back()) == run) {
    run *= loops.back().count;
    loops.pop_back();
  }
  for (std::size_t i = loops.size(); i-- > 1;) {
    ByteLoop& outer = loops[i - 1];
    if (file_stride(outer) != file_stride(loops[i]) * loops[i].count) continue;
    outer.count *= loops[i].count;
    outer.target_stride_bytes = file_stride(loops[i]);
    loops.erase(loops.begin() + static_cast<std::ptrdiff_t>(i));
  }
  Covered covered = {write.file_begin_bytes, run};
  for (const ByteLoop& loop : loops) covered.insert(covered.end(), {loop.count, file_stride(loop)});
  return covered;
}

class WriterChooser {
 public:
  explicit WriterChooser(const Plan& load) : load_(load), by_source_(load.sources.size()), out_(load.ranks.size()) {
    for (std::size_t r = 0; r < out_.size(); ++r) out_[r].rank = load.ranks[r].rank;
  }

  Result<std::vector<RankWrites>, Errors> run() {
    for (std::uint32_t r = 0; r < load_.ranks.size(); ++r) collect(r);
    for (const SourceId id : load_.sources.ids()) group(id);
    if (!errors_.empty()) return fail(std::move(errors_));
    share_out();
    for (std::size_t r = 0; r < out_.size(); ++r) put_in_order(r);
    return std::move(out_);
  }

 private:
  void collect(std::uint32_t r) {
    const RankPlan& rank = load_.ranks[r];
    for (const DestinationId d : rank.destinations.ids()) {
      const Destination& destination = rank.destinations[d];
      const plan::Statement& statement = load_.statements[destination.statement];
      // A second memory of a tensor is its framework's copy.
      if (destination.slot != statement.placement.slots.front().name) continue;
      for (std::uint32_t list = 0; list <= destination.comparisons.size(); ++list) {
        const auto& transfers = list == 0 ? destination.transfers : destination.comparisons[list - 1];
        for (std::uint32_t t = 0; t < transfers.size(); ++t) {
          const Transfer& transfer = transfers[t];
          if (transfer.is_fill() || transfer.elems() == 0) continue;
          by_source_[transfer.source].push_back(
              {r, turned_round(load_.sources[transfer.source], statement.storage, transfer, {d, list, t})});
        }
      }
    }
  }

  void group(SourceId id) {
    const Source& source = load_.sources[id];
    std::vector<Candidate>& candidates = by_source_[id];
    if (source.scaling) {
      errors_.add(Error(Code::kPlan, "the key is quantized, and quantized keys are not written")
                      .of_tensor(source.key)
                      .by_rule("R48")
                      .try_this("Save into the keys of a checkpoint that is not quantized."));
      return;
    }
    std::map<Covered, Group> groups;
    for (Candidate& candidate : candidates) {
      Group& group = groups[covered_by(candidate.write, source)];
      if (!group.candidates.empty() && group.candidates.back().rank == candidate.rank) continue;
      if (group.candidates.empty()) {
        group.elems = candidate.write.elems();
        group.bytes = bytes_of_elems(group.elems, source.dtype);
      }
      group.candidates.push_back(candidate);
    }
    const std::uint64_t wanted = *source.shape.num_elems();
    std::uint64_t found = 0;
    for (const auto& [covered, group] : groups) found += group.elems;
    if (found > wanted) return cut_into_runs(source, candidates);
    if (found < wanted) return lacks(source);
    for (auto& [covered, group] : groups) groups_.push_back(std::move(group));
  }

  // Runs of all holders, and at each place the one that reaches farthest.
  void cut_into_runs(const Source& source, const std::vector<Candidate>& candidates) {
    struct Run {
      std::uint64_t begin = 0;
      std::uint64_t end = 0;
      std::uint64_t memory = 0;
      const Candidate* holder = nullptr;
    };
    std::vector<Run> runs;
    for (const Candidate& candidate : candidates) {
      const std::uint64_t bytes = bytes_of_elems(candidate.write.run_elems, source.dtype);
      for_each_run(candidate.write.loops, [&](const RunOffsets& at) {
        const std::uint64_t begin = candidate.write.file_begin_bytes + at.target;
        runs.push_back({begin, begin + bytes, candidate.write.memory_begin_bytes + at.source, &candidate});
        return true;
      });
    }
    std::stable_sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.begin < b.begin; });
    const Run* farthest = nullptr;
    std::size_t next = 0;
    for (std::uint64_t at = source.bytes.begin; at < source.bytes.end; at = farthest->end) {
      for (; next < runs.size() && runs[next].begin <= at; ++next) {
        if (farthest == nullptr || runs[next].end > farthest->end) farthest = &runs[next];
      }
      if (farthest == nullptr || farthest->end <= at) return lacks(source);
      add_run(source, *farthest->holder, farthest->memory, {farthest->begin, at}, farthest->end);
    }
  }

  // Of a run of the holder's, what stands behind the first of two places.
  void add_run(const Source& source, const Candidate& holder, std::uint64_t memory, ByteRange before,
               std::uint64_t end) {
    const std::uint64_t skipped = before.size_bytes() * 8 / bits(source.dtype);
    Group group;
    group.elems = (end - before.end) * 8 / bits(source.dtype);
    group.bytes = end - before.end;
    Write write{
        holder.write.transfer, memory + bytes_of_elems(skipped, storage_of(holder)), before.end, group.elems, {}};
    group.candidates.push_back({holder.rank, std::move(write)});
    groups_.push_back(std::move(group));
  }

  void share_out() {
    std::vector<const Group*> shared;
    for (const Group& group : groups_) {
      if (group.candidates.size() == 1) {
        give(group.candidates.front(), group.bytes);
      } else {
        shared.push_back(&group);
      }
    }
    std::stable_sort(shared.begin(), shared.end(), [](const Group* a, const Group* b) { return a->bytes > b->bytes; });
    for (const Group* group : shared) share(*group);
  }

  void share(const Group& group) {
    const auto& all = group.candidates;
    const bool is_dense = std::all_of(all.begin(), all.end(), [](const Candidate& c) { return c.write.loops.empty(); });
    std::vector<const Candidate*> by_load;
    for (const Candidate& candidate : all) by_load.push_back(&candidate);
    std::stable_sort(by_load.begin(), by_load.end(),
                     [&](const Candidate* a, const Candidate* b) { return out_[a->rank].bytes < out_[b->rank].bytes; });
    const std::uint64_t parts = is_dense ? std::min<std::uint64_t>(all.size(), group.bytes / kLeastPartBytes) : 1;
    if (parts < 2) return give(*by_load.front(), group.bytes);
    const std::uint64_t part_elems = (group.elems / parts + kPartElems - 1) / kPartElems * kPartElems;
    std::uint64_t first = 0;
    for (std::uint64_t p = 0; first < group.elems; ++p) {
      const std::uint64_t elems = std::min(part_elems, group.elems - first);
      give_part(*by_load[p], first, elems);
      first += elems;
    }
  }

  void give_part(const Candidate& candidate, std::uint64_t first, std::uint64_t elems) {
    const DType dtype = source_of(candidate).dtype;
    Candidate part = candidate;
    part.write.memory_begin_bytes += bytes_of_elems(first, storage_of(candidate));
    part.write.file_begin_bytes += bytes_of_elems(first, dtype);
    part.write.run_elems = elems;
    give(part, bytes_of_elems(elems, dtype));
  }

  void give(const Candidate& candidate, std::uint64_t bytes) {
    out_[candidate.rank].writes.push_back(candidate.write);
    out_[candidate.rank].bytes += bytes;
  }

  void put_in_order(std::size_t r) {
    const RankPlan& rank = load_.ranks[r];
    const auto place = [&](const Write& write) {
      return std::pair(load_.sources[rank.at(write.transfer).source].file, write.file_begin_bytes);
    };
    std::stable_sort(out_[r].writes.begin(), out_[r].writes.end(),
                     [&](const Write& a, const Write& b) { return place(a) < place(b); });
  }

  [[nodiscard]] const Source& source_of(const Candidate& candidate) const {
    return load_.sources[load_.ranks[candidate.rank].at(candidate.write.transfer).source];
  }
  [[nodiscard]] DType storage_of(const Candidate& candidate) const {
    return load_.statements[load_.ranks[candidate.rank].destinations[candidate.write.transfer.destination].statement]
        .storage;
  }

  void lacks(const Source& source) {
    errors_.add(Error(Code::kPlan, "no rank holds this key whole, and no ranks together do")
                    .of_tensor(source.key)
                    .by_rule("R69")
                    .try_this("Check that the mapping takes every element of the key, and the layout every rank."));
  }

  const Plan& load_;
  IndexedVector<SourceId, std::vector<Candidate>> by_source_;
  std::vector<Group> groups_;
  std::vector<RankWrites> out_;
  Errors errors_;
};

}  // namespace

Result<std::vector<RankWrites>, Errors> choose_writers(const Plan& load) { return WriterChooser(load).run(); }

}  // namespace lading::planner
