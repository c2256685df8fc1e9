#include "planner/work_out.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/element_bytes.h"

namespace lading::planner {
namespace {

using layout::Region;
using layout::Run;
using mapping::Loop;
using mapping::Piece;

using Strides = InlineVector<std::uint64_t, 4>;

Strides strides_of(const Shape& shape) {
  Strides strides(shape.rank(), 1);
  for (std::size_t d = shape.rank(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

std::uint64_t dot(const Strides& index, const Strides& strides) {
  std::uint64_t sum = 0;
  for (std::size_t d = 0; d < index.size(); ++d) sum += index[d] * strides[d];
  return sum;
}

// A loop of a transfer while strides are still counted in elements.
struct ElementLoop {
  std::uint64_t count = 1;
  std::uint64_t source = 0;
  std::uint64_t target = 0;
};
using ElementLoops = InlineVector<ElementLoop, 4>;

// Row-major [begin, end) of a shape as boxes: at most two per dim and one.
void flat_boxes(const Shape& shape, std::uint64_t begin, std::uint64_t end, std::vector<Box>& out) {
  const Strides strides = strides_of(shape);
  struct Stretch {
    Box prefix;  // the dims that are fixed already
    std::uint64_t begin;
    std::uint64_t end;  // of what is left, row-major
  };
  std::vector<Stretch> todo = {{Box{}, begin, end}};
  while (!todo.empty()) {
    Stretch stretch = std::move(todo.back());
    todo.pop_back();
    if (stretch.begin >= stretch.end) continue;
    const std::size_t dim = stretch.prefix.rank();
    if (dim == shape.rank()) {
      out.push_back(std::move(stretch.prefix));
      continue;
    }
    const auto fixed = [&](std::uint64_t from, std::uint64_t to) {
      Box box = stretch.prefix;
      box.begin.push_back(from);
      box.end.push_back(to);
      return box;
    };
    const std::uint64_t stride = strides[dim];
    const std::uint64_t first = stretch.begin / stride;
    const std::uint64_t last = (stretch.end - 1) / stride;
    if (first == last) {
      todo.push_back({fixed(first, first + 1), stretch.begin - first * stride, stretch.end - first * stride});
      continue;
    }
    const std::uint64_t whole_begin = first + (stretch.begin % stride != 0 ? 1 : 0);
    const std::uint64_t whole_end = stretch.end / stride;
    if (whole_begin > first) todo.push_back({fixed(first, first + 1), stretch.begin % stride, stride});
    if (whole_end > whole_begin) {
      Box box = fixed(whole_begin, whole_end);
      for (std::size_t d = dim + 1; d < shape.rank(); ++d) {
        box.begin.push_back(0);
        box.end.push_back(shape[d]);
      }
      out.push_back(std::move(box));
    }
    if (stretch.end % stride != 0) todo.push_back({fixed(whole_end, whole_end + 1), 0, stretch.end % stride});
  }
}

class Worker {
 public:
  Worker(const WorkInputs& inputs, const Region& region)
      : inputs_(inputs), region_(region), target_strides_(strides_of(region.local_shape)) {
    source_strides_.reserve(inputs.source_numbers.size());
    for (const std::uint32_t number : inputs.source_numbers)
      source_strides_.push_back(strides_of(inputs.sources[number].shape));
    if (region.flat) flat_boxes(region.local_shape, region.flat->begin, region.flat->end, boxes_);
  }

  Result<std::vector<Transfer>> run() {
    if (!region_.present || region_.owned_elems() == 0) return std::move(transfers_);
    for (const Piece& piece : inputs_.pieces.pieces) cut_to_region(piece, 0);
    if (cut_in_a_byte_) {
      return fail(Error(Code::kPlan, "packed elements are cut inside a byte"));
    }
    std::sort(transfers_.begin(), transfers_.end(),
              [](const Transfer& a, const Transfer& b) { return a.target_begin_bytes < b.target_begin_bytes; });
    return std::move(transfers_);
  }

 private:
  // One dim after the other: the part in each run, moved to where the run sits locally.
  void cut_to_region(const Piece& piece, std::size_t dim) {
    if (dim == region_.runs.size()) {
      cut_to_flat(piece);
      return;
    }
    const std::vector<Run>& runs = region_.runs[dim];
    if (runs.size() == 1 && runs[0].begin == 0 && runs[0].size == inputs_.pieces.shape[dim]) {
      cut_to_region(piece, dim + 1);
      return;
    }
    for (const Run& run : runs) {
      for (Piece& part : mapping::clip(piece, dim, run.begin, run.begin + run.size)) {
        part.target_origin[dim] = part.target_origin[dim] - run.begin + run.local_begin;
        cut_to_region(part, dim + 1);
      }
    }
  }

  void cut_to_flat(const Piece& piece) {
    if (!region_.flat) {
      emit(piece);
      return;
    }
    for (const Box& box : boxes_) {
      std::vector<Piece> parts = {piece};
      for (std::size_t d = 0; d < box.rank(); ++d) {
        std::vector<Piece> inside;
        for (const Piece& part : parts) {
          for (Piece& cut : mapping::clip(part, d, box.begin[d], box.end[d])) inside.push_back(std::move(cut));
        }
        parts = std::move(inside);
      }
      for (const Piece& part : parts) emit(part);
    }
  }

  void emit(const Piece& piece) {
    ElementLoops loops;
    for (const Loop& loop : piece.loops) {
      const std::uint64_t target = loop.target_step * target_strides_[loop.target_dim];
      // A fill reads nothing; moving with the target lets its loops join.
      const std::uint64_t source =
          piece.is_fill() ? target : loop.source_step * source_strides_[piece.source][loop.source_dim];
      loops.push_back({loop.count, source, target});
    }
    Transfer transfer;
    transfer.run_elems = join(loops);
    std::uint64_t target = dot(piece.target_origin, target_strides_);
    if (region_.flat) target = target - region_.flat->begin + region_.flat->buffer_begin;
    transfer.target_begin_bytes = target_bytes(target);
    if (piece.is_fill()) {
      transfer.source = Transfer::kFillSource;
      transfer.fill = piece.fill;
    } else {
      transfer.source = inputs_.source_numbers[piece.source];
      const Source& source = inputs_.sources[transfer.source];
      transfer.source_begin_bytes =
          source.bytes.begin + bytes(dot(piece.source_origin, source_strides_[piece.source]), source.dtype);
      bytes(transfer.run_elems, source.dtype);
    }
    target_bytes(transfer.run_elems);
    transfer.loops.reserve(loops.size());
    for (const ElementLoop& loop : loops) {
      const std::uint64_t source = piece.is_fill() ? 0 : bytes(loop.source, inputs_.sources[transfer.source].dtype);
      transfer.loops.push_back({loop.count, source, target_bytes(loop.target)});
    }
    transfers_.push_back(std::move(transfer));
  }

  // Joins loops that continue each other on both sides; gives the length of the innermost run.
  static std::uint64_t join(ElementLoops& loops) {
    std::sort(loops.begin(), loops.end(),
              [](const ElementLoop& a, const ElementLoop& b) { return a.target > b.target; });
    std::uint64_t run = 1;
    while (!loops.empty() && loops.back().source == run && loops.back().target == run) {
      run *= loops.back().count;
      loops.pop_back();
    }
    for (std::size_t i = loops.size(); i-- > 1;) {
      ElementLoop& outer = loops[i - 1];
      const ElementLoop inner = loops[i];
      if (outer.source != inner.source * inner.count || outer.target != inner.target * inner.count) continue;
      outer = {outer.count * inner.count, inner.source, inner.target};
      loops.erase(loops.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return run;
  }

  std::uint64_t bytes(std::uint64_t elems, DType dtype) {
    const std::uint64_t element_bits = bits(dtype);
    if (elems % 8 * element_bits % 8 != 0) cut_in_a_byte_ = true;
    return elems / 8 * element_bits + elems % 8 * element_bits / 8;
  }
  std::uint64_t target_bytes(std::uint64_t elems) { return bytes(elems, inputs_.storage); }

  const WorkInputs& inputs_;
  const Region& region_;
  Strides target_strides_;
  std::vector<Strides> source_strides_;
  std::vector<Box> boxes_;
  std::vector<Transfer> transfers_;
  bool cut_in_a_byte_ = false;
};

// Reads that are this near are one: seeking costs more than reading on.
constexpr std::uint64_t kJoinGapBytes = 16 << 10;

void add_reads(const Transfer& transfer, const Source& source, std::vector<Read>& reads) {
  const auto run = element_bytes(transfer.run_elems, source.dtype);
  if (!run || *run == 0) return;
  // From the inside out: loops whose rows are near each other are read through, the first that jumps
  // farther becomes a strided read, and what is outside of that is listed.
  std::vector<TransferLoop> loops = transfer.loops;
  std::sort(loops.begin(), loops.end(),
            [](const TransferLoop& a, const TransferLoop& b) { return a.source_stride_bytes < b.source_stride_bytes; });
  Read read{source.file, transfer.source_begin_bytes, *run, 1, 0};
  std::vector<TransferLoop> outer;
  for (const TransferLoop& loop : loops) {
    if (read.count == 1 && loop.source_stride_bytes <= read.size_bytes + kJoinGapBytes) {
      read.size_bytes = std::max(read.size_bytes, (loop.count - 1) * loop.source_stride_bytes + read.size_bytes);
    } else if (read.count == 1) {
      read.count = loop.count;
      read.stride_bytes = loop.source_stride_bytes;
    } else if (loop.source_stride_bytes == read.count * read.stride_bytes) {
      read.count *= loop.count;
    } else {
      outer.push_back(loop);
    }
  }
  if (outer.empty()) {
    reads.push_back(read);
    return;
  }
  std::vector<Read> expanded = {read};
  for (const TransferLoop& loop : outer) {
    std::vector<Read> more;
    for (const Read& one : expanded) {
      for (std::uint64_t i = 0; i < loop.count; ++i) {
        more.push_back(one);
        more.back().begin_bytes += i * loop.source_stride_bytes;
      }
    }
    expanded = std::move(more);
  }
  reads.insert(reads.end(), expanded.begin(), expanded.end());
}

std::uint64_t end_of(const Read& read) {
  return read.begin_bytes + (read.count - 1) * read.stride_bytes + read.size_bytes;
}

// Reads that lie in each other and still share no byte: columns of the same rows.
bool are_columns(std::vector<Read>::const_iterator begin, std::vector<Read>::const_iterator end) {
  for (auto read = begin; read != end; ++read) {
    if (read->count != begin->count || read->stride_bytes != begin->stride_bytes || read->count == 1) return false;
    if (end_of(*read) - (read->count - 1) * read->stride_bytes > begin->begin_bytes + begin->stride_bytes) return false;
    if (read != begin && read->begin_bytes < std::prev(read)->begin_bytes + std::prev(read)->size_bytes) return false;
  }
  return true;
}

std::vector<Read> join_near(const std::vector<Read>& reads) {
  std::vector<Read> joined;
  for (const Read& read : reads) {
    Read* last = joined.empty() ? nullptr : &joined.back();
    const bool plain = last != nullptr && last->file == read.file && last->count == 1 && read.count == 1;
    if (plain && read.begin_bytes <= end_of(*last) + kJoinGapBytes) {
      last->size_bytes = end_of(read) - last->begin_bytes;
    } else {
      joined.push_back(read);
    }
  }
  return joined;
}

}  // namespace

Result<std::vector<Transfer>> work_out(const WorkInputs& inputs, const Region& region) {
  return Worker(inputs, region).run();
}

std::vector<Transfer> padding_fills(const Region& region, DType storage) {
  std::vector<Transfer> fills;
  if (!region.present || !region.flat || !region.unit.empty()) return fills;
  const auto fill = [&](std::uint64_t begin, std::uint64_t end) {
    if (begin >= end) return;
    Transfer transfer;
    transfer.source = Transfer::kFillSource;
    transfer.target_begin_bytes = begin * bits(storage) / 8;
    transfer.run_elems = end - begin;
    fills.push_back(std::move(transfer));
  };
  fill(0, region.flat->buffer_begin);
  fill(region.flat->buffer_begin + region.flat->end - region.flat->begin, region.buffer_elems);
  return fills;
}

std::vector<Read> reads_of(const std::vector<const Transfer*>& transfers, const std::vector<Source>& sources) {
  std::vector<Read> reads;
  reads.reserve(transfers.size());
  for (const Transfer* transfer : transfers) {
    if (!transfer->is_fill()) add_reads(*transfer, sources[transfer->source], reads);
  }
  std::sort(reads.begin(), reads.end(), [](const Read& a, const Read& b) {
    return a.file != b.file ? a.file < b.file : a.begin_bytes < b.begin_bytes;
  });
  std::vector<Read> once;
  once.reserve(reads.size());
  for (auto begin = reads.begin(); begin != reads.end();) {
    std::uint64_t reached = end_of(*begin);
    auto end = begin + 1;
    for (; end != reads.end() && end->file == begin->file && end->begin_bytes < reached; ++end) {
      reached = std::max(reached, end_of(*end));
    }
    if (end - begin == 1 || are_columns(begin, end)) {
      once.insert(once.end(), begin, end);
    } else {
      once.push_back({begin->file, begin->begin_bytes, reached - begin->begin_bytes, 1, 0});
    }
    begin = end;
  }
  return join_near(once);
}

}  // namespace lading::planner
