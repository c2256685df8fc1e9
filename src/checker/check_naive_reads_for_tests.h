// For tests: whether a rank's reads serve its transfers, by looking at every byte.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "checker/check_naive_scales_for_tests.h"
#include "checker/plan_types.h"

namespace lading::checker::naive {

class ReadsVerdict {
 public:
  ReadsVerdict(const Plan& plan, const RankPlan& rank) : plan_(plan), rank_(rank) {}

  /// The transfers must be good. `read_bytes` is what the rank says that it reads.
  bool good() {
    std::uint64_t read_bytes = 0;
    for (const Read& read : rank_.reads) {
      if (!is_possible(read)) return false;
      read_bytes += read.size_bytes * read.count;
    }
    for (const ScaleRead& read : rank_.scale_reads) {
      if (read.bytes.begin >= read.bytes.end || read.zeros.begin > read.zeros.end) return false;
      read_bytes += bytes_of_scale_read(plan_, read);
    }
    if (read_bytes != rank_.read_bytes) return false;
    for (const Read& read : rank_.reads) {
      if (!serves(read)) return false;
    }
    for (const DestinationId d : rank_.destinations.ids()) {
      if (!all_served(d, 0, rank_.destinations[d].transfers)) return false;
      for (std::uint32_t c = 0; c < rank_.destinations[d].comparisons.size(); ++c) {
        if (!all_served(d, c + 1, rank_.destinations[d].comparisons[c])) return false;
      }
    }
    return true;
  }

 private:
  bool is_possible(const Read& read) const {
    if (!plan_.files.has(read.file) || read.count == 0 || read.size_bytes == 0) return false;
    if (read.count > 1 && read.stride_bytes < read.size_bytes) return false;
    if (read.count > plan_.files[read.file].size_bytes) return false;
    return read.begin_bytes + (read.count - 1) * read.stride_bytes + read.size_bytes <=
           plan_.files[read.file].size_bytes;
  }

  static bool takes_bytes(const Transfer& transfer) { return !transfer.is_fill() && transfer.elems() > 0; }

  bool all_served(DestinationId d, std::uint32_t list, const std::vector<Transfer>& transfers) const {
    for (std::uint32_t t = 0; t < transfers.size(); ++t) {
      if (takes_bytes(transfers[t]) && !served_.contains({d, list, t})) return false;
    }
    return true;
  }

  bool serves(const Read& read) {
    if (read.transfers.empty()) return false;
    std::vector<std::vector<bool>> taken(read.count, std::vector<bool>(read.size_bytes, false));
    std::set<std::string> devices;
    std::set<bool> uses;
    for (const TransferRef& ref : read.transfers) {
      if (!rank_.destinations.has(ref.destination)) return false;
      const Destination& d = rank_.destinations[ref.destination];
      if (ref.list > d.comparisons.size()) return false;
      const auto& list = ref.list == 0 ? d.transfers : d.comparisons[ref.list - 1];
      if (ref.transfer >= list.size() || !takes_bytes(list[ref.transfer]) || !served_.insert(ref).second) return false;
      devices.insert(d.device);
      uses.insert(ref.list > 0);
      if (plan_.sources[list[ref.transfer].source].file != read.file) return false;
      if (!take(list[ref.transfer], read, taken)) return false;
    }
    if (devices.size() > 1 || uses.size() > 1) return false;
    const std::uint64_t widest = plan_.read_limits.gap_of(read.file);
    for (const std::vector<bool>& row : taken) {
      if (!row.front() || !row.back()) return false;
      std::uint64_t gap = 0;
      for (const bool is_taken : row) {
        gap = is_taken ? 0 : gap + 1;
        if (gap > widest) return false;
      }
    }
    return true;
  }

  // A loop steps over whole rows, or stays within one.
  bool take(const Transfer& transfer, const Read& read, std::vector<std::vector<bool>>& taken) const {
    if (transfer.source_begin_bytes < read.begin_bytes) return false;
    const std::uint64_t offset = transfer.source_begin_bytes - read.begin_bytes;
    const std::uint64_t stride = read.count > 1 ? read.stride_bytes : ~std::uint64_t{0};
    Indices counts;
    for (const ByteLoop& loop : transfer.loops) {
      if (loop.count > 1 && loop.source_stride_bytes >= stride && loop.source_stride_bytes % stride != 0) return false;
      counts.push_back(loop.count);
    }
    counts.push_back(bytes_of_run(plan_, transfer));
    for (std::uint64_t i = 0; i < product(counts); ++i) {
      const Indices index = unravel(i, counts);
      std::uint64_t row = offset / stride;
      std::uint64_t column = offset % stride + index.back();
      for (std::size_t k = 0; k < transfer.loops.size(); ++k) {
        const std::uint64_t step = transfer.loops[k].source_stride_bytes;
        (step >= stride ? row : column) += index[k] * (step >= stride ? step / stride : step);
      }
      if (row >= read.count || column >= read.size_bytes) return false;
      taken[row][column] = true;
    }
    return true;
  }

  const Plan& plan_;
  const RankPlan& rank_;
  std::set<TransferRef> served_;
};

}  // namespace lading::checker::naive
