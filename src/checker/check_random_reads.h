// For tests: random reads that serve the transfers of a rank, byte by byte.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "checker/plan_types.h"

namespace lading::checker::naive {

/// Every byte of its file that a transfer takes.
inline std::set<std::uint64_t> bytes_taken(const Plan& plan, const Transfer& transfer) {
  std::set<std::uint64_t> begins = {transfer.source_begin_bytes};
  for (const ByteLoop& loop : transfer.loops) {
    std::set<std::uint64_t> more;
    for (const std::uint64_t begin : begins) {
      for (std::uint64_t i = 0; i < loop.count; ++i) more.insert(begin + i * loop.source_stride_bytes);
    }
    begins = std::move(more);
  }
  std::set<std::uint64_t> taken;
  const std::uint64_t run_bytes = transfer.run_elems * bits(plan.sources[transfer.source].dtype) / 8;
  for (const std::uint64_t begin : begins) {
    for (std::uint64_t b = 0; b < run_bytes; ++b) taken.insert(begin + b);
  }
  return taken;
}

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

/// Replaces the rank's reads by random ones that serve its transfers, and widens the gaps that the plan allows to
/// theirs.
template <class Dice>
void serve_again(Dice& dice, Plan& plan, RankPlan& rank) {
  struct Draft {
    Read read;
    std::set<std::uint64_t> taken;
  };
  std::vector<Draft> drafts;
  for (const DestinationId d : rank.destinations.ids()) {
    const Destination& destination = rank.destinations[d];
    for (std::uint32_t list = 0; list <= destination.comparisons.size(); ++list) {
      const auto& transfers = list == 0 ? destination.transfers : destination.comparisons[list - 1];
      for (std::uint32_t t = 0; t < transfers.size(); ++t) {
        if (transfers[t].is_fill() || transfers[t].elems() == 0) continue;
        const Source& source = plan.sources[transfers[t].source];
        Draft draft;
        draft.taken = bytes_taken(plan, transfers[t]);
        const std::uint64_t begin = *draft.taken.begin();
        draft.read = {source.file, begin, *draft.taken.rbegin() + 1 - begin, 1, 0, {{d, list, t}}};
        for (const ByteLoop& loop : transfers[t].loops) {  // as rows, if one loop steps over all the others
          std::uint64_t inside = transfers[t].run_elems * bits(source.dtype) / 8;
          for (const ByteLoop& other : transfers[t].loops) {
            if (&other != &loop) inside += (other.count - 1) * other.source_stride_bytes;
          }
          if (loop.count < 2 || inside > loop.source_stride_bytes || dice.once_in(3)) continue;
          draft.read.size_bytes = inside;
          draft.read.count = loop.count;
          draft.read.stride_bytes = loop.source_stride_bytes;
          break;
        }
        drafts.push_back(std::move(draft));
      }
    }
  }
  std::sort(drafts.begin(), drafts.end(), [](const Draft& a, const Draft& b) {
    const auto key = [](const Read& r) { return std::tuple(r.is_comparison(), r.file, r.begin_bytes, r.transfers[0]); };
    return key(a.read) < key(b.read);
  });
  const auto device_of = [&](const Read& read) { return rank.destinations[read.transfers[0].destination].device; };
  std::vector<Draft> joined;
  for (Draft& draft : drafts) {
    Draft* const last = joined.empty() ? nullptr : &joined.back();
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
  plan.read_limits.gap_bytes.resize(plan.files.size(), 0);
  rank.reads.clear();
  rank.read_bytes = 0;
  for (Draft& draft : joined) {
    std::uint64_t& gap = plan.read_limits.gap_bytes[draft.read.file];
    gap = std::max(gap, widest_gap(draft.read, draft.taken));
    rank.read_bytes += draft.read.total_bytes();
    rank.reads.push_back(std::move(draft.read));
  }
}

}  // namespace lading::checker::naive
