#include "planner/work_out.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/box.h"
#include "base/element_bytes.h"
#include "base/inline_vector.h"
#include "base/loop_nest.h"

namespace lading::planner {

// A piece says where the elements of a tensor come from, a region which of them a rank holds. Both speak in indices of
// the tensor; a transfer speaks in bytes of a file and of a buffer. On the way from one to the other nothing is listed
// element by element, so the cost goes with pieces times runs. Example: W [4, 6] is A [4, 4] and B [4, 2] side by side,
// F32, and rank 1 of 2 holds rows 2 and 3.
//
//            A             B        pieces, with loops {count: source dim -> target dim} from target [0, 0] and [0, 4]
//   row 0    a0 a1 a2 a3 | b0 b1      A {4: 0 -> 0} {4: 1 -> 1}
//   row 1    a4 a5 a6 a7 | b2 b3      B {4: 0 -> 0} {2: 1 -> 1}
//            ------------+------    region: dim 0 is one run, global 2..3 at local 0..1; dim 1 is whole
//   row 2    a8 …        | b4 b5
//   row 3    ac …        | b6 b7
//
// 1. cut_to_region() clips the pieces to each run of each dim, and moves them to where the run sits locally. Of A there
//    is left {2: 0 -> 0} {4: 1 -> 1}, from A [2, 0] to [0, 0]. A loop that a run cuts in the middle may come back as
//    several pieces.
// 2. cut_to_flat() is for ranks that hold a stretch of the flattened part (ZeRO-3, FSDP1): the stretch is a few boxes,
//    and the pieces are clipped to each. Elements 2..9 of [3, 4]:
//
//       .  .  x  x     [0, 1) × [2, 4)
//       x  x  x  x     [1, 2) × [0, 4)
//       x  x  .  .     [2, 3) × [0, 2)
//
// 3. emit() multiplies indices out with the strides of the source's shape and of the *local* one, here (4, 1) and (6,
// 1):
//    A becomes {2: 4 -> 6} {4: 1 -> 1}, from element 8 to element 0. join() makes runs long: the inner loop goes on
//    where a run of one ends, on both sides, so it is the run. What is left is a run of 4 and {2: 4 -> 6}, in bytes:
//
//       A  run of 4 elems, 2 times, from A's begin + 32, 16 apart, to byte  0 of the buffer, 24 apart
//       B  run of 2 elems, 2 times, from B's begin + 16,  8 apart, to byte 16 of the buffer, 24 apart
//
// Pieces are disjoint and tile the tensor, and so do runs and boxes the part: transfers do not overlap, and whatever no
// transfer writes is padding. The checker proves it by going the other way, from elements back to bytes.
namespace {

using layout::Region;
using layout::Run;
using mapping::Piece;
using mapping::PieceLoop;

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
    for (const SourceId number : inputs.source_numbers)
      source_strides_.push_back(strides_of(inputs.sources[number].shape));
    if (region.flat) flat_boxes(region.local_shape, region.flat->begin, region.flat->end, boxes_);
  }

  Result<std::vector<Transfer>> run() {
    if (!region_.present || region_.owned_elems() == 0) return std::move(transfers_);
    for (const Piece& piece : inputs_.pieces.pieces) cut_to_region(piece, 0);
    if (cut_in_a_byte_) {
      return fail(
          Error(Code::kPlan, "packed elements are cut inside a byte").try_this("Change the cuts of the tensor."));
    }
    std::sort(transfers_.begin(), transfers_.end(),
              [](const Transfer& a, const Transfer& b) { return a.target_begin_bytes < b.target_begin_bytes; });
    return std::move(transfers_);
  }

 private:
  // Step 1. One dim after the other: the part in each run, moved to where the run sits locally.
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

  // Step 2.
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

  // Step 3. Loops are sorted by the target before they are joined: the run is what lies side by side in the buffer, and
  // an expression may name its dims in any order.
  void emit(const Piece& piece) {
    ElementLoops loops;
    for (const PieceLoop& loop : piece.loops) {
      const std::uint64_t target = loop.target_step * target_strides_[loop.target_dim];
      // A fill reads nothing; moving with the target lets its loops join.
      const std::uint64_t source =
          piece.is_fill() ? target : loop.source_step * source_strides_[piece.source.number()][loop.source_dim];
      loops.push_back({loop.count, source, target});
    }
    Nest nest;
    nest.run_elems = join(loops);
    nest.loops = std::move(loops);
    nest.target = offset_of(piece.target_origin, target_strides_);
    if (region_.flat) nest.target = nest.target - region_.flat->begin + region_.flat->buffer_begin;
    if (!piece.is_fill()) nest.source = offset_of(piece.source_origin, source_strides_[piece.source.number()]);
    if (piece.is_fill()) return add_fill(nest, piece.fill);
    add_transfers(std::move(nest), inputs_.source_numbers[piece.source.number()]);
  }

  // A transfer while it is counted in elements.
  struct Nest {
    std::uint64_t source = 0;
    std::uint64_t target = 0;
    std::uint64_t run_elems = 0;
    ElementLoops loops;
  };

  void add_fill(const Nest& nest, double fill) {
    Transfer transfer;
    transfer.source = SourceId::none();
    transfer.fill = fill;
    place_in_target(nest, transfer);
    for (const ElementLoop& loop : nest.loops) {
      transfer.loops.push_back({loop.count, 0, target_bytes(loop.target_stride_elems)});
    }
    transfers_.push_back(std::move(transfer));
  }

  void place_in_target(const Nest& nest, Transfer& transfer) {
    transfer.target_begin_bytes = target_bytes(nest.target);
    transfer.run_elems = nest.run_elems;
    target_bytes(transfer.run_elems);
    transfer.loops.reserve(nest.loops.size());
  }

  // A transfer's loops step over whole bytes. One that steps over a part of a byte, as of the transpose of a tensor of
  // U4, becomes several: of two codes in a byte, one transfer takes the first ones and another the second ones.
  void add_transfers(Nest nest, SourceId id) {
    const Source& source = inputs_.sources[id];
    const std::uint64_t in_byte = source.codes_per_byte();
    const auto steps_into_bytes = [&](const ElementLoop& loop) { return loop.source_stride_elems % in_byte != 0; };
    const auto found = std::find_if(nest.loops.begin(), nest.loops.end(), steps_into_bytes);
    if (found == nest.loops.end()) return add_transfer(nest, id);
    const ElementLoop loop = *found;
    const std::uint64_t parts = in_byte / std::gcd(in_byte, loop.source_stride_elems);
    const auto at = found - nest.loops.begin();
    for (std::uint64_t i = 0; i < std::min(parts, loop.count); ++i) {
      Nest part = nest;
      part.source += i * loop.source_stride_elems;
      part.target += i * loop.target_stride_elems;
      part.loops.begin()[at] = {(loop.count - i - 1) / parts + 1, parts * loop.source_stride_elems,
                                parts * loop.target_stride_elems};
      if (part.loops.begin()[at].count == 1) part.loops.erase(part.loops.begin() + at);
      add_transfers(std::move(part), id);
    }
  }

  void add_transfer(const Nest& nest, SourceId id) {
    const Source& source = inputs_.sources[id];
    Transfer transfer;
    transfer.source = id;
    place_in_target(nest, transfer);
    const std::uint64_t in_byte = source.codes_per_byte();
    transfer.first_code = static_cast<std::uint8_t>(nest.source % in_byte);
    transfer.source_begin_bytes = source.bytes.begin + source_bytes(nest.source / in_byte, source);
    if (in_byte == 1) source_bytes(nest.run_elems, source);
    for (const ElementLoop& loop : nest.loops) {
      transfer.loops.push_back({loop.count, source_bytes(loop.source_stride_elems / in_byte, source),
                                target_bytes(loop.target_stride_elems)});
    }
    transfers_.push_back(std::move(transfer));
  }

  // Joins loops that continue each other on both sides; gives the length of the innermost run. {3: 20 -> 40} {5: 4 ->
  // 8} is {15: 4 -> 8}: the outer loop goes on where the fifth round of the inner one ends.
  static std::uint64_t join(ElementLoops& loops) {
    sort_by_target(loops);
    const std::uint64_t run = grow_run(1, loops);
    for (std::size_t i = loops.size(); i-- > 1;) {
      ElementLoop& outer = loops[i - 1];
      const ElementLoop inner = loops[i];
      const bool goes_on = outer.source_stride_elems == inner.source_stride_elems * inner.count &&
                           outer.target_stride_elems == inner.target_stride_elems * inner.count;
      if (!goes_on) continue;
      outer = {outer.count * inner.count, inner.source_stride_elems, inner.target_stride_elems};
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
  // Of whole bytes of codes, or of elements.
  std::uint64_t source_bytes(std::uint64_t count, const Source& source) {
    return source.code() ? count : bytes(count, source.dtype);
  }

  const WorkInputs& inputs_;
  const Region& region_;
  Strides target_strides_;
  std::vector<Strides> source_strides_;
  std::vector<Box> boxes_;
  std::vector<Transfer> transfers_;
  bool cut_in_a_byte_ = false;
};

}  // namespace

Result<std::vector<Transfer>> work_out(const WorkInputs& inputs, const Region& region) {
  return Worker(inputs, region).run();
}

std::vector<Transfer> padding_fills(const Region& region, DType storage) {
  std::vector<Transfer> fills;
  if (!region.present || !region.flat || !region.flat_parameter.empty()) return fills;
  const auto fill = [&](std::uint64_t begin, std::uint64_t end) {
    if (begin >= end) return;
    Transfer transfer;
    transfer.source = SourceId::none();
    transfer.target_begin_bytes = begin * bits(storage) / 8;
    transfer.run_elems = end - begin;
    fills.push_back(std::move(transfer));
  };
  fill(0, region.flat->buffer_begin);
  fill(region.flat->buffer_begin + region.flat->end - region.flat->begin, region.buffer_elems);
  return fills;
}

}  // namespace lading::planner
