#include "checker/check_scales.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/checked.h"
#include "base/text.h"
#include "checker/check_bytes.h"
#include "checker/check_decoding.h"
#include "checker/problem.h"

namespace lading::checker {
namespace {

// Numbers of scales, in the row-major order of the grid: [begin, end).
struct Numbers {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// Those of the rows of blocks that have rows `first` to `last` of dim 0.
Numbers scales_of_rows(const Source& source, std::uint64_t first, std::uint64_t last) {
  std::uint64_t count = 1;
  for (std::size_t d = 1; d < source.shape.rank(); ++d) {
    count *= *blocks_of(source.shape[d], source.scaling->block[d]);
  }
  if (source.shape.rank() == 0) return {0, count};
  // Which row an element's scale is in, only the groups know.
  const bool is_anywhere = !source.scaling->groups.is_none() && source.scaling->decoding.groups_dim == 0;
  if (is_anywhere) return {0, *blocks_of(source.shape[0], source.scaling->block[0]) * count};
  const std::uint64_t block = source.scaling->block[0];
  return {first / block * count, (last / block + 1) * count};
}

// Which element of the zero points' source has that of scale `number`. Scales of shape [2, 10, 3] with zero points
// packed by 8 along dim 1 have zero points of shape [2, 2, 3]: number 29 is [0, 9, 2], in element [0, 1, 2].
std::uint64_t zeros_element(const Plan& plan, const Source& source, std::uint64_t number) {
  const Shape& scales = plan.sources[source.scaling->scales].shape;
  const std::size_t dim = source.scaling->decoding.zeros_dim;
  const std::uint64_t together = source.scaling->decoding.per_element;
  std::uint64_t inner = 1;
  for (std::size_t d = dim + 1; d < scales.rank(); ++d) inner *= scales[d];
  const std::uint64_t outer = number / inner / scales[dim];
  const std::uint64_t along = number / inner % scales[dim];
  return (outer * *blocks_of(scales[dim], together) + along / together) * inner + number % inner;
}

// The rows of dim 0 that a transfer takes elements of: the first and the last. Or batches that take them.
struct Rows {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};

Rows rows_of(const Source& source, const Transfer& transfer) {
  if (source.shape.rank() == 0) return {};
  const std::uint64_t together = codes_in_a_byte(source);  // payloads are a byte each
  const std::uint64_t begin = (transfer.source_begin_bytes - source.bytes.begin) * together + transfer.first_code;
  std::uint64_t end = begin + transfer.run_elems;
  for (const ByteLoop& loop : transfer.loops) end += (loop.count - 1) * loop.source_stride_bytes * together;
  std::uint64_t elems = 1;
  for (std::size_t d = 1; d < source.shape.rank(); ++d) elems *= source.shape[d];
  return {begin / elems, (end - 1) / elems};
}

ByteRange bytes_of_elements(const Source& source, Numbers elements) {
  const std::uint64_t width = bits(source.dtype) / 8;
  return {source.bytes.begin + elements.begin * width, source.bytes.begin + elements.end * width};
}

// The rows of blocks go from the first scale to the last without a hole, and so do the elements that hold their zero
// points: rows of blocks are a part of the dim that those are packed along, or of one in front of it, or are but one.
ScaleRead wanted_read(const Plan& plan, SourceId id, Rows rows) {
  const Source& source = plan.sources[id];
  const Numbers scales = scales_of_rows(source, rows.first, rows.last);
  ScaleRead read{id, bytes_of_elements(plan.sources[source.scaling->scales], scales), {}};
  if (source.scaling->zeros.is_none()) return read;
  const Numbers zeros{zeros_element(plan, source, scales.begin), zeros_element(plan, source, scales.end - 1) + 1};
  read.zeros = bytes_of_elements(plan.sources[source.scaling->zeros], zeros);
  return read;
}

IndexedVector<SourceId, std::optional<Rows>> rows_taken(const Plan& plan, const RankPlan& rank) {
  IndexedVector<SourceId, std::optional<Rows>> taken(plan.sources.size());
  const auto add = [&](const std::vector<Transfer>& transfers) {
    for (const Transfer& transfer : transfers) {
      if (transfer.is_fill() || transfer.elems() == 0 || !plan.sources[transfer.source].scaling) continue;
      const Rows rows = rows_of(plan.sources[transfer.source], transfer);
      std::optional<Rows>& all = taken[transfer.source];
      all = all ? Rows{std::min(all->first, rows.first), std::max(all->last, rows.last)} : rows;
    }
  };
  for (const Destination& destination : rank.destinations) {
    add(destination.transfers);
    for (const auto& comparison : destination.comparisons) add(comparison);
  }
  return taken;
}

std::optional<std::uint64_t> memory_of(const Plan& plan, const ScaleRead& read) {
  const auto zeros = checked_mul(read.zeros.size_bytes(), codes_in_a_byte(plan.sources[read.source]));
  const auto bytes = zeros ? checked_add(read.bytes.size_bytes(), *zeros) : std::nullopt;
  const SourceId groups = plan.sources[read.source].scaling->groups;
  return bytes && plan.sources.has(groups) ? checked_add(*bytes, plan.sources[groups].bytes.size_bytes()) : bytes;
}

// While the batch runs that needs most. Nothing: more than 2^63.
std::optional<std::uint64_t> scale_memory(const Plan& plan, const RankPlan& rank) {
  IndexedVector<SourceId, std::optional<Rows>> batches(plan.sources.size());  // the first and the last that takes it
  std::uint64_t batch = 0;
  for (std::uint64_t number = 0; number < rank.reads.size(); ++number) {
    if (!rank.batch_ends.empty() && number == rank.batch_ends[batch]) ++batch;
    for (const TransferRef& ref : rank.reads[number].transfers) {
      const Transfer& transfer = rank.at(ref);
      if (transfer.is_fill()) continue;
      std::optional<Rows>& all = batches[transfer.source];
      all = all ? Rows{all->first, batch} : Rows{batch, batch};
    }
  }
  std::vector<std::optional<std::uint64_t>> in_memory(batch + 1, 0);
  for (const ScaleRead& read : rank.scale_reads) {
    const std::optional<std::uint64_t> bytes = memory_of(plan, read);
    const Rows needed = batches[read.source].value_or(Rows{0, batch});
    for (std::uint64_t b = needed.first - (needed.first > 0 ? 1 : 0); b <= needed.last; ++b) {
      in_memory[b] = bytes && in_memory[b] ? checked_add(*in_memory[b], *bytes) : std::nullopt;
    }
  }
  if (std::find(in_memory.begin(), in_memory.end(), std::nullopt) != in_memory.end()) return std::nullopt;
  return **std::max_element(in_memory.begin(), in_memory.end());
}

Errors check_batches(const RankPlan& rank) {
  Errors errors;
  if (rank.batch_ends.empty()) return errors;
  std::uint64_t end = 0;
  for (const std::uint32_t next : rank.batch_ends) {
    if (next <= end) {
      errors.add(problem("a batch of reads is empty, or begins before the one in front of it ends", "R64"));
      return errors;
    }
    end = next;
  }
  if (end != rank.reads.size()) {
    errors.add(problem("the batches do not have all reads of the rank", "R64")
                   .wanted(std::to_string(rank.reads.size()))
                   .got(std::to_string(end)));
  }
  return errors;
}

}  // namespace

std::optional<ScaleBytes> scale_bytes(const Plan& plan, const ScaleRead& read) {
  if (!plan.sources.has(read.source) || !plan.sources[read.source].scaling) return std::nullopt;
  const plan::Scaling& scaling = *plan.sources[read.source].scaling;
  if (!plan.sources.has(scaling.scales)) return std::nullopt;
  ScaleBytes result;
  result.parts.push_back({scaling.scales, read.bytes});
  if (plan.sources.has(scaling.zeros)) result.parts.push_back({scaling.zeros, read.zeros});
  for (const SourceId whole : {scaling.tensor_scale, scaling.groups}) {
    if (plan.sources.has(whole)) result.parts.push_back({whole, plan.sources[whole].bytes});
  }
  return result;
}

Errors check_scale_reads(const Plan& plan, const RankPlan& rank) {
  Errors errors;
  const auto taken = rows_taken(plan, rank);
  IndexedVector<SourceId, bool> is_read(plan.sources.size(), false);
  for (const ScaleRead& read : rank.scale_reads) {
    if (!plan.sources.has(read.source) || !taken[read.source] || is_read[read.source]) {
      errors.add(problem("the rank reads the scales of a source that it takes nothing of, or reads them twice", "R48"));
      continue;
    }
    is_read[read.source] = true;
    const ScaleRead wanted = wanted_read(plan, read.source, *taken[read.source]);
    const auto refuse = [&](std::string_view what, const ByteRange& needed, const ByteRange& found) {
      if (found == needed) return;
      errors.add(problem(fmt::format("the rank does not read the {} of {} that it needs", what,
                                     quote(plan.sources[read.source].key)),
                         "R48")
                     .wanted(fmt::format("bytes {} to {}", needed.begin, needed.end))
                     .got(fmt::format("bytes {} to {}", found.begin, found.end)));
    };
    refuse("scales", wanted.bytes, read.bytes);
    refuse("zero points", wanted.zeros, read.zeros);
  }
  for (const SourceId source : plan.sources.ids()) {
    if (!taken[source] || is_read[source]) continue;
    errors.add(problem(
        fmt::format("the rank takes elements of {} but reads no scales for them", quote(plan.sources[source].key)),
        "R48"));
  }
  return errors;
}

Errors check_scale_memory(const Plan& plan, const RankPlan& rank) {
  Errors errors = check_batches(rank);
  if (!errors.empty()) return errors;
  if (const auto scales = scale_memory(plan, rank); !scales || *scales > rank.staging_bytes) {
    errors.add(problem("the rank's scales need more memory than it may have beside its tensors", "R64")
                   .wanted(fmt::format("at most {}", rank.staging_bytes))
                   .got(scales ? std::to_string(*scales) : "more than 2^63"));
  }
  return errors;
}

}  // namespace lading::checker
