// For tests: random reads that serve the transfers of a rank, byte by byte.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "checker/check_naive_scales_for_tests.h"
#include "checker/plan_types.h"

namespace lading::checker::naive {

/// The most bytes in a row that a read holds and nobody takes.
inline std::uint64_t widest_gap(const Read& read, const std::set<std::uint64_t>& taken) {
  std::uint64_t widest = 0;
  for (std::uint64_t row = 0; row < read.count; ++row) {
    std::uint64_t gap = 0;
    for (std::uint64_t b = 0; b < read.size_bytes; ++b) {
      gap = taken.contains(read.begin_bytes + row * read.stride_bytes + b) ? 0 : gap + 1;
      widest = std::max(widest, gap);
    }
  }
  return widest;
}

struct ReadDraft {
  Read read;
  std::set<std::uint64_t> taken;
};

/// A read for this transfer alone: from its first byte to its last, or rows, if one loop steps over all the others.
template <class Dice>
ReadDraft draft_for(Dice& dice, const Plan& plan, const Transfer& transfer, TransferRef ref) {
  const Source& source = plan.sources[transfer.source];
  ReadDraft draft;
  draft.taken = bytes_taken(plan, transfer);
  const std::uint64_t begin = *draft.taken.begin();
  draft.read = {source.file, begin, *draft.taken.rbegin() + 1 - begin, 1, 0, {ref}};
  for (const ByteLoop& loop : transfer.loops) {
    std::uint64_t inside = bytes_of_run(plan, transfer);
    for (const ByteLoop& other : transfer.loops) {
      if (&other != &loop) inside += (other.count - 1) * other.source_stride_bytes;
    }
    if (loop.count < 2 || inside > loop.source_stride_bytes || dice.once_in(3)) continue;
    draft.read.size_bytes = inside;
    draft.read.count = loop.count;
    draft.read.stride_bytes = loop.source_stride_bytes;
    break;
  }
  return draft;
}

/// One for each transfer that reads, in the order in which a plan has its reads.
template <class Dice>
std::vector<ReadDraft> drafts_for(Dice& dice, const Plan& plan, const RankPlan& rank) {
  std::vector<ReadDraft> drafts;
  for (const DestinationId d : rank.destinations.ids()) {
    const Destination& destination = rank.destinations[d];
    for (std::uint32_t list = 0; list <= destination.comparisons.size(); ++list) {
      const auto& transfers = list == 0 ? destination.transfers : destination.comparisons[list - 1];
      for (std::uint32_t t = 0; t < transfers.size(); ++t) {
        if (transfers[t].is_fill() || transfers[t].elems() == 0) continue;
        drafts.push_back(draft_for(dice, plan, transfers[t], {d, list, t}));
      }
    }
  }
  std::sort(drafts.begin(), drafts.end(), [](const ReadDraft& a, const ReadDraft& b) {
    const auto key = [](const Read& r) { return std::tuple(r.is_comparison(), r.file, r.begin_bytes, r.transfers[0]); };
    return key(a.read) < key(b.read);
  });
  return drafts;
}

/// Joins some neighbours that may be joined.
template <class Dice>
std::vector<ReadDraft> join_some(Dice& dice, const RankPlan& rank, std::vector<ReadDraft> drafts) {
  const auto device_of = [&](const Read& read) { return rank.destinations[read.transfers[0].destination].device; };
  std::vector<ReadDraft> joined;
  for (ReadDraft& draft : drafts) {
    ReadDraft* const last = joined.empty() ? nullptr : &joined.back();
    const bool fits = last != nullptr && last->read.file == draft.read.file && last->read.count == 1 &&
                      draft.read.count == 1 && last->read.is_comparison() == draft.read.is_comparison() &&
                      device_of(last->read) == device_of(draft.read);
    if (fits && dice.once_in(3)) {
      const std::uint64_t end =
          std::max(last->read.begin_bytes + last->read.size_bytes, draft.read.begin_bytes + draft.read.size_bytes);
      last->read.size_bytes = end - last->read.begin_bytes;
      last->read.transfers.push_back(draft.read.transfers[0]);
      last->taken.merge(draft.taken);
      continue;
    }
    joined.push_back(std::move(draft));
  }
  return joined;
}

/// Replaces the rank's reads by random ones that serve its transfers, and widens the gaps that the plan allows to
/// theirs.
template <class Dice>
void serve_again(Dice& dice, Plan& plan, RankPlan& rank) {
  std::vector<ReadDraft> drafts = join_some(dice, rank, drafts_for(dice, plan, rank));
  plan.read_limits.gap_bytes.resize(plan.files.size(), 0);
  rank.reads.clear();
  rank.read_bytes = 0;
  rank.scale_reads = scale_reads_of(plan, rank);
  for (const ScaleRead& read : rank.scale_reads) rank.read_bytes += bytes_of_scale_read(plan, read);
  for (ReadDraft& draft : drafts) {
    std::uint64_t& gap = plan.read_limits.gap_bytes[draft.read.file];
    gap = std::max(gap, widest_gap(draft.read, draft.taken));
    rank.read_bytes += draft.read.total_bytes();
    rank.reads.push_back(std::move(draft.read));
  }
  rank.batch_ends.clear();
  if (rank.reads.empty() || dice.once_in(2)) return;
  for (std::uint32_t end = 1; end < rank.reads.size(); ++end) {
    if (dice.once_in(3)) rank.batch_ends.push_back(end);
  }
  rank.batch_ends.push_back(static_cast<std::uint32_t>(rank.reads.size()));
}

}  // namespace lading::checker::naive
