#include "planner/quantized/scale_reads.h"

#include <algorithm>
#include <map>

#include "base/element_bytes.h"

namespace lading::planner {
namespace {

// From the first element that the rank takes of a source to the last one.
struct Hull {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};

using Hulls = std::map<SourceId, Hull>;

void add(const Plan& plan, const std::vector<Transfer>& transfers, Hulls& hulls) {
  for (const Transfer& transfer : transfers) {
    if (transfer.is_fill() || transfer.elems() == 0 || !plan.sources[transfer.source].scaling) continue;
    const Source& source = plan.sources[transfer.source];
    const std::uint64_t in_byte = source.codes_per_byte();
    const auto elems = [&](std::uint64_t bytes) { return bytes * in_byte; };  // an element has a byte, or less
    const std::uint64_t first = elems(transfer.source_begin_bytes - source.bytes.begin) + transfer.first_code;
    std::uint64_t last = first + transfer.run_elems - 1;
    for (const ByteLoop& loop : transfer.loops) last += (loop.count - 1) * elems(loop.source_stride_bytes);
    const auto [found, is_new] = hulls.try_emplace(transfer.source, Hull{first, last});
    found->second.first = std::min(found->second.first, first);
    found->second.last = std::max(found->second.last, last);
  }
}

// Rows of blocks: those of the grid's first dim.
struct BlockRows {
  std::uint64_t begin = 0;
  std::uint64_t end = 1;
  std::uint64_t count = 1;   // of all
  std::uint64_t scales = 1;  // in each
};

BlockRows block_rows_of(const Source& source, const Hull& hull) {
  BlockRows rows;
  if (source.shape.rank() == 0) return rows;
  std::uint64_t row_elems = 1;
  for (std::size_t d = 1; d < source.shape.rank(); ++d) {
    row_elems *= source.shape[d];
    rows.scales *= (source.shape[d] - 1) / source.scaling->block[d] + 1;
  }
  rows.count = (source.shape[0] - 1) / source.scaling->block[0] + 1;
  const std::uint64_t rows_elems = row_elems * std::min(source.shape[0], source.scaling->block[0]);
  if (!source.scaling->groups.is_none() && source.scaling->decoding.groups_dim == 0) {
    rows.end = rows.count;  // any element may be in any of them
    return rows;
  }
  rows.begin = hull.first / rows_elems;
  rows.end = hull.last / rows_elems + 1;
  return rows;
}

// Whole rows: a few bytes more than needed, and one read.
ByteRange scale_bytes(const Plan& plan, const Source& source, const BlockRows& rows) {
  const Source& scales = plan.sources[source.scaling->scales];
  return {scales.bytes.begin + bytes_of_elems(rows.begin * rows.scales, scales.dtype),
          scales.bytes.begin + bytes_of_elems(rows.end * rows.scales, scales.dtype)};
}

// Where zero points are packed along the rows, an element has those of several rows.
ByteRange zero_bytes(const Plan& plan, const Source& source, const BlockRows& rows) {
  if (source.scaling->zeros.is_none()) return {};
  const ByteRange all = plan.sources[source.scaling->zeros].bytes;
  const Shape& scales = plan.sources[source.scaling->scales].shape;
  const auto is_extended = [](std::uint64_t dim) { return dim != 1; };
  const auto first = std::find_if(scales.begin(), scales.end(), is_extended);
  // One row, or rows that are merged with the dims behind them.
  if (first == scales.end() || *first != rows.count) return all;
  const Decoding& decoding = source.scaling->decoding;
  const bool is_packed_along_rows = scales.begin() + static_cast<std::ptrdiff_t>(decoding.zeros_dim) == first;
  const std::uint64_t together = is_packed_along_rows ? decoding.per_element : 1;
  const std::uint64_t row_bytes = all.size_bytes() / ((rows.count - 1) / together + 1);
  return {all.begin + rows.begin / together * row_bytes, all.begin + ((rows.end - 1) / together + 1) * row_bytes};
}

}  // namespace

void add_scale_reads(const Plan& plan, RankPlan& rank) {
  const auto has_scaling = [](const Source& source) { return source.scaling.has_value(); };
  if (std::none_of(plan.sources.begin(), plan.sources.end(), has_scaling)) return;
  Hulls hulls;
  for (const Destination& destination : rank.destinations) {
    add(plan, destination.transfers, hulls);
    for (const auto& comparison : destination.comparisons) add(plan, comparison, hulls);
  }
  for (const auto& [source, hull] : hulls) {
    const Source& of = plan.sources[source];
    const BlockRows rows = block_rows_of(of, hull);
    rank.scale_reads.push_back({source, scale_bytes(plan, of, rows), zero_bytes(plan, of, rows)});
    rank.read_bytes += rank.scale_reads.back().bytes.size_bytes() + rank.scale_reads.back().zeros.size_bytes();
    for (const SourceId whole : {of.scaling->tensor_scale, of.scaling->groups}) {
      if (!whole.is_none()) rank.read_bytes += plan.sources[whole].bytes.size_bytes();
    }
  }
}

void cut_into_batches(const Plan& plan, std::uint64_t batch_bytes, RankPlan& rank) {
  if (plan::scale_memory_bytes(plan, rank) <= batch_bytes) return;
  std::map<SourceId, std::uint64_t> bytes_of;  // of scales that no batch has needed yet
  for (const plan::ScaleRead& read : rank.scale_reads) bytes_of[read.source] = plan::scale_memory_bytes(plan, read);
  std::uint64_t in_batch_bytes = 0;
  for (std::uint32_t r = 0; r < rank.reads.size(); ++r) {
    std::uint64_t new_bytes = 0;
    for (const plan::TransferRef& ref : rank.reads[r].transfers) {
      const auto found = bytes_of.find(rank.at(ref).source);
      if (found == bytes_of.end()) continue;
      new_bytes += found->second;
      bytes_of.erase(found);
    }
    if (in_batch_bytes > 0 && in_batch_bytes + new_bytes > batch_bytes) {
      rank.batch_ends.push_back(r);
      in_batch_bytes = 0;
    }
    in_batch_bytes += new_bytes;
  }
  rank.batch_ends.push_back(static_cast<std::uint32_t>(rank.reads.size()));
}

}  // namespace lading::planner
