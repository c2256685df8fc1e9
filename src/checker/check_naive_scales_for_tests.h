// For tests: what scales a plan's sources and ranks need, by looking at every element (see check_naive_for_tests.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "checker/check_naive_for_tests.h"

namespace lading::checker::naive {

/// The bits of its file where a transfer takes an element, each at its first.
inline std::set<std::uint64_t> bits_taken(const Plan& plan, const Transfer& transfer) {
  const std::uint64_t width = width_of(plan.sources[transfer.source]);
  std::set<std::uint64_t> taken;
  for (std::uint64_t i = 0; i < transfer.run_elems; ++i) {
    taken.insert(transfer.source_begin_bytes * 8 + (transfer.first_code + i) * width);
  }
  for (const ByteLoop& loop : transfer.loops) {
    std::set<std::uint64_t> more;
    for (const std::uint64_t begin : taken) {
      for (std::uint64_t i = 0; i < loop.count; ++i) more.insert(begin + i * loop.source_stride_bytes * 8);
    }
    taken = std::move(more);
  }
  return taken;
}

/// Every byte of its file that a transfer takes, be it only a part.
inline std::set<std::uint64_t> bytes_taken(const Plan& plan, const Transfer& transfer) {
  const std::uint64_t width = width_of(plan.sources[transfer.source]);
  std::set<std::uint64_t> taken;
  for (const std::uint64_t begin : bits_taken(plan, transfer)) {
    for (std::uint64_t bit = begin; bit < begin + width; ++bit) taken.insert(bit / 8);
  }
  return taken;
}

/// Of one run, counted one by one: elements of the first and the last byte may be somebody else's.
inline std::uint64_t bytes_of_run(const Plan& plan, const Transfer& transfer) {
  Transfer run = transfer;
  run.loops.clear();
  return bytes_taken(plan, run).size();
}

/// How many blocks there are in each dim: those of the last element, and one.
inline Indices grid_of(const Shape& shape, const Shape& block) {
  Indices grid;
  for (std::size_t d = 0; d < shape.rank(); ++d) {
    std::set<std::uint64_t> blocks;
    for (std::uint64_t i = 0; i < shape[d]; ++i) blocks.insert(i / block[d]);
    grid.push_back(blocks.size());
  }
  return grid;
}

inline Indices without_ones(Indices dims) {
  std::erase(dims, 1);
  return dims;
}

/// All that become of the dims when neighbours are merged, or not.
inline std::set<Indices> merges_of(const Indices& dims) {
  if (dims.size() < 2) return {dims};
  std::set<Indices> all;
  for (const Indices& rest : merges_of({dims.begin() + 1, dims.end()})) {
    Indices apart = {dims.front()};
    apart.insert(apart.end(), rest.begin(), rest.end());
    all.insert(apart);
    Indices together = rest;
    together.front() *= dims.front();
    all.insert(together);
  }
  return all;
}

/// A source that another one is multiplied by, or that is taken from it.
inline bool companion_good(const Plan& plan, const Source& source, SourceId id) {
  return plan.sources.has(id) && !plan.sources[id].scaling &&
         checkpoint_of(plan.sources[id], plan) == checkpoint_of(source, plan);
}

inline bool codes_good(const Source& source) {
  const Decoding& decoding = source.scaling->decoding;
  if (decoding.zero >= 65536) return false;
  if (!decoding.code) return decoding.zero == 0 && source.scaling->zeros.is_none();
  const std::set<DType> integers = {DType::kU8,  DType::kI8,  DType::kU16, DType::kI16,
                                    DType::kU32, DType::kI32, DType::kU64, DType::kI64};
  if (!integers.contains(source.dtype)) return false;
  if (decoding.per_element * width_of(source) != bits(source.dtype)) return false;
  return source.shape.rank() > 0 && indices_of(source.shape).back() == decoding.per_element;
}

/// As the scales, but that elements hold several along one dim.
inline bool zeros_good(const Plan& plan, const Source& source) {
  const Source& zeros = plan.sources[source.scaling->zeros];
  Indices dims = indices_of(plan.sources[source.scaling->scales].shape);
  const std::size_t dim = source.scaling->decoding.zeros_dim;
  if (zeros.dtype != source.dtype || dim >= dims.size()) return false;
  const std::uint64_t together = bits(zeros.dtype) / width_of(source);
  std::uint64_t elems = 0;
  while (elems * together < dims[dim]) ++elems;
  dims[dim] = elems;
  return without_ones(dims) == without_ones(indices_of(zeros.shape));
}

inline bool order_good(const Indices& grid, const std::vector<std::size_t>& order) {
  return order.empty() || (is_order(order, order.size()) && grid.size() > 1 && grid.back() % order.size() == 0);
}

/// One number for each code along a dim of the key, which no block cuts an element of.
inline bool groups_good(const Plan& plan, const Source& source) {
  const Decoding& decoding = source.scaling->decoding;
  if (source.scaling->groups.is_none()) return decoding.groups_dim == 0;
  const Source& groups = plan.sources[source.scaling->groups];
  const Indices dims = indices_of(source.shape);
  if (!decoding.code || !decoding.scale_order.empty() || decoding.groups_dim + 1 >= dims.size()) return false;
  if (grid_of(source.shape, source.scaling->block).back() != 1 || groups.dtype != DType::kI32) return false;
  return indices_of(groups.shape) == Indices{dims[decoding.groups_dim] * dims.back()};
}

/// One scale for each block, and what else it may have, in the same checkpoint, and not scaled itself.
inline bool scaling_good(const Plan& plan, const Source& source) {
  const auto& [scales, block, product, decoding, zeros, tensor_scale, groups] = *source.scaling;
  if (!companion_good(plan, source, scales)) return false;
  if (!zeros.is_none() && !companion_good(plan, source, zeros)) return false;
  if (!tensor_scale.is_none() && !companion_good(plan, source, tensor_scale)) return false;
  if (!groups.is_none() && !companion_good(plan, source, groups)) return false;
  if (product && *product != DType::kF16 && *product != DType::kBF16 && *product != DType::kF32 &&
      *product != DType::kF64) {
    return false;
  }
  if (!codes_good(source)) return false;
  if (block.rank() != source.shape.rank() || std::find(block.begin(), block.end(), 0) != block.end()) return false;
  const Indices grid = grid_of(source.shape, block);
  const Indices found = without_ones(indices_of(plan.sources[scales].shape));
  if (decoding.code ? !merges_of(without_ones(grid)).contains(found) : without_ones(grid) != found) return false;
  if (decoding.scale_dtype && (*decoding.scale_dtype != DType::kF8E8M0 || plan.sources[scales].dtype != DType::kU8)) {
    return false;
  }
  if (!order_good(grid, decoding.scale_order)) return false;
  if (!zeros.is_none() && !zeros_good(plan, source)) return false;
  if (!groups_good(plan, source)) return false;
  if (tensor_scale.is_none()) return true;
  const Source& of_tensor = plan.sources[tensor_scale];
  return of_tensor.dtype == DType::kF32 && naive::product(indices_of(of_tensor.shape)) == 1;
}

/// Where the scale of an element may stand among the scales, if these are in the order of the elements: at one place,
/// or wherever its group says.
inline std::set<std::uint64_t> scales_of(const Source& source, std::uint64_t elem) {
  Indices index = unravel(elem, indices_of(source.shape));
  for (std::size_t d = 0; d < index.size(); ++d) index[d] /= source.scaling->block[d];
  const Indices grid = grid_of(source.shape, source.scaling->block);
  if (source.scaling->groups.is_none()) return {ravel(index, grid)};
  std::set<std::uint64_t> all;
  std::uint64_t& group = index[source.scaling->decoding.groups_dim];
  for (group = 0; group < grid[source.scaling->decoding.groups_dim]; ++group) all.insert(ravel(index, grid));
  return all;
}

/// Which element of the zero points' key holds that of a scale.
inline std::uint64_t zero_of(const Plan& plan, const Source& source, std::uint64_t scale) {
  Indices dims = indices_of(plan.sources[source.scaling->scales].shape);
  const std::size_t dim = source.scaling->decoding.zeros_dim;
  const std::uint64_t together = bits(source.dtype) / width_of(source);
  Indices index = unravel(scale, dims);
  index[dim] /= together;
  dims[dim] = (dims[dim] + together - 1) / together;
  return ravel(index, dims);
}

inline ByteRange bytes_of_elems(const Source& source, const std::set<std::uint64_t>& elems) {
  const std::uint64_t width = bits(source.dtype) / 8;
  return {source.bytes.begin + *elems.begin() * width, source.bytes.begin + (*elems.rbegin() + 1) * width};
}

/// By source: the bytes of its scales, and zero points, from the first row of blocks that the rank takes an element of
/// to the last one. Transfers, sources and scalings must be good.
inline std::vector<ScaleRead> scale_reads_of(const Plan& plan, const RankPlan& rank) {
  std::map<SourceId, std::set<std::uint64_t>> taken;
  const auto add = [&](const std::vector<Transfer>& transfers) {
    for (const Transfer& transfer : transfers) {
      if (transfer.is_fill() || transfer.elems() == 0 || !plan.sources[transfer.source].scaling) continue;
      const Source& source = plan.sources[transfer.source];
      for (const std::uint64_t bit : bits_taken(plan, transfer))
        taken[transfer.source].merge(scales_of(source, (bit - source.bytes.begin * 8) / width_of(source)));
    }
  };
  for (const Destination& destination : rank.destinations) {
    add(destination.transfers);
    for (const auto& comparison : destination.comparisons) add(comparison);
  }
  std::vector<ScaleRead> reads;
  for (const auto& [id, numbers] : taken) {
    const Source& source = plan.sources[id];
    const Indices grid = grid_of(source.shape, source.scaling->block);
    const std::uint64_t row = grid.empty() ? 1 : product(grid) / grid.front();
    std::set<std::uint64_t> scales;
    std::set<std::uint64_t> zeros;
    for (std::uint64_t n = *numbers.begin() / row * row; n < (*numbers.rbegin() / row + 1) * row; ++n) {
      scales.insert(n);
      if (!source.scaling->zeros.is_none()) zeros.insert(zero_of(plan, source, n));
    }
    reads.push_back({id, bytes_of_elems(plan.sources[source.scaling->scales], scales)});
    if (!zeros.empty()) reads.back().zeros = bytes_of_elems(plan.sources[source.scaling->zeros], zeros);
  }
  return reads;
}

/// Of scales, zero points, the scale of the whole tensor, and groups.
inline std::uint64_t bytes_of_scale_read(const Plan& plan, const ScaleRead& read) {
  const bool is_scaled = plan.sources.has(read.source) && plan.sources[read.source].scaling;
  std::uint64_t bytes = read.bytes.size_bytes() + read.zeros.size_bytes();
  if (!is_scaled) return bytes;
  const plan::Scaling& scaling = *plan.sources[read.source].scaling;
  for (const SourceId whole : {scaling.tensor_scale, scaling.groups})
    bytes += plan.sources.has(whole) ? plan.sources[whole].bytes.size_bytes() : 0;
  return bytes;
}

/// Scales and groups are in memory as they are stored, zero points in a byte each.
inline std::uint64_t memory_of_scales(const Plan& plan, const std::vector<ScaleRead>& reads) {
  std::uint64_t bytes = 0;
  for (const ScaleRead& read : reads) {
    bytes += read.bytes.size_bytes();
    for (std::uint64_t bit = read.zeros.begin * 8; bit < read.zeros.end * 8; bit += width_of(plan.sources[read.source]))
      ++bytes;
    const SourceId groups = plan.sources[read.source].scaling->groups;
    if (!groups.is_none()) bytes += plan.sources[groups].bytes.size_bytes();
  }
  return bytes;
}

/// Where the reads are cut, each is in one batch, and no batch is empty.
inline bool batches_good(const RankPlan& rank) {
  std::set<std::uint64_t> ends(rank.batch_ends.begin(), rank.batch_ends.end());
  const bool ascend = std::equal(ends.begin(), ends.end(), rank.batch_ends.begin(), rank.batch_ends.end());
  return ends.empty() || (ascend && !ends.contains(0) && *ends.rbegin() == rank.reads.size());
}

/// Of the scales that are in memory at a time: when a batch runs, those of it and the next one, and those that some
/// batch before and some batch behind takes. Reads and batches must be good.
inline std::uint64_t memory_of_scales(const Plan& plan, const RankPlan& rank) {
  if (rank.batch_ends.empty()) return memory_of_scales(plan, rank.scale_reads);
  std::vector<std::set<SourceId>> taken(rank.batch_ends.size());
  for (std::size_t b = 0; b < taken.size(); ++b) {
    for (std::size_t r = b == 0 ? 0 : rank.batch_ends[b - 1]; r < rank.batch_ends[b]; ++r) {
      for (const TransferRef& ref : rank.reads[r].transfers) taken[b].insert(rank.at(ref).source);
    }
  }
  std::uint64_t most = 0;
  for (std::size_t b = 0; b < taken.size(); ++b) {
    std::vector<ScaleRead> there;
    for (const ScaleRead& read : rank.scale_reads) {
      const auto takes = [&](const std::set<SourceId>& batch) { return batch.contains(read.source); };
      const auto at = taken.begin() + static_cast<std::ptrdiff_t>(b);
      const auto next = b + 1 < taken.size() ? at + 2 : at + 1;
      const bool begun = std::any_of(taken.begin(), next, takes);
      if (begun && std::any_of(at, taken.end(), takes)) there.push_back(read);
    }
    most = std::max(most, memory_of_scales(plan, there));
  }
  return most;
}

}  // namespace lading::checker::naive
