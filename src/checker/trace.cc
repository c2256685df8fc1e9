#include "checker/trace.h"

#include <algorithm>

namespace lading::checker {

// Each node translates a progression of its own elements into progressions of its parts, down to the sources.
// A progression translates as a whole if it stays in one segment, steps by whole periods, or moves along one dim. Of
// any other, the node takes a prefix that does, then looks at the rest. So the cost is one step per prefix, not one per
// element. With {begin, +stride, count}:
//
//   C = A [2, 3] and B [2, 2] concatenated in dim 1:  a0 a1 a2 b0 b1 | a3 a4 a5 b2 b3     period 5
//     row 0     {0, +1, 5}  ->  A {0, +1, 3}, then B {0, +1, 2}
//     column 3  {3, +5, 2}  ->  B {0, +2, 2}      one period of C (5) is one period of B (2)
//   T = A transposed:  a0 a3 | a1 a4 | a2 a5      dims {size 3, stride 2, part_stride 1}, {2, 1, 3}
//     row 0     {0, +1, 2}  ->  A {0, +3, 2}
//     column 0  {0, +2, 3}  ->  A {0, +1, 3}

bool Trace::follow(std::uint64_t begin, std::uint64_t end, Rounds rounds, OriginSink& sink) const {
  if (begin == end) return true;
  return walk_rounds(root_, {begin, 1, end - begin}, rounds, sink);
}

// Rows of a matrix that a rank has columns of go the same way, as long as they lie in the same sources: they are
// followed together. `elems` are contiguous.
bool Trace::walk_rounds(NodeId id, Progression elems, Rounds rounds, OriginSink& sink) const {
  const Node& node = nodes_[id];
  if (node.kind == NodeKind::kSource) return sink.take({node.source, elems.begin, 1, elems.count, 0}, rounds);
  while (rounds.count > 0) {
    std::uint64_t together = 1;
    bool goes_on = true;
    const std::uint64_t within = node.kind == NodeKind::kSegments ? elems.begin % node.period : 0;
    const Segment* segment = node.kind == NodeKind::kSegments ? &segment_at(node, within) : nullptr;
    if (rounds.count > 1 && segment != nullptr && within + elems.count <= segment->end) {
      // The rounds that end in this segment. A segment of 12, rounds of 3 elements, step 6: (12 - 0 - 3) / 6 + 1 = 2.
      together = std::min(rounds.count, (segment->end - within - elems.count) / rounds.step + 1);
      const Progression part{
          elems.begin / node.period * segment->part_period + segment->part_offset + (within - segment->begin), 1,
          elems.count};
      // Within a segment elements keep their distance, so the part has the same step.
      goes_on = walk_rounds(segment->part, part, {together, rounds.step}, sink);
    } else {
      goes_on = walk(id, elems, sink);
    }
    if (!goes_on) return false;
    elems.begin += together * rounds.step;
    rounds.count -= together;
  }
  return true;
}

const Trace::Segment& Trace::segment_at(const Node& node, std::uint64_t within) {
  return *std::upper_bound(node.segments.begin(), node.segments.end(), within,
                           [](std::uint64_t at, const Segment& s) { return at < s.end; });
}

bool Trace::walk(NodeId id, Progression elems, OriginSink& sink) const {
  const Node& node = nodes_[id];
  if (elems.count == 1) elems.stride = 1;  // a stride that is never taken may be larger than this tensor
  switch (node.kind) {
    case NodeKind::kSource: return sink.take({node.source, elems.begin, elems.stride, elems.count, 0}, {});
    case NodeKind::kConstant: return sink.take({SourceId::none(), 0, 1, elems.count, node.fill}, {});
    case NodeKind::kSegments: return walk_segments(node, elems, sink);
    case NodeKind::kDims: return walk_dims(node, elems, sink);
  }
  return false;
}

bool Trace::walk_segments(const Node& node, Progression elems, OriginSink& sink) const {
  while (elems.count > 0) {
    const std::uint64_t outer = elems.begin / node.period;
    const std::uint64_t within = elems.begin % node.period;
    const Segment& segment = segment_at(node, within);
    Progression part{outer * segment.part_period + segment.part_offset + (within - segment.begin), elems.stride, 0};
    if (elems.stride % node.period == 0) {
      // Whole periods at a time: all of them meet the same segment.
      part.stride = elems.stride / node.period * segment.part_period;
      part.count = elems.count;
    } else {
      part.count = std::min(elems.count, (segment.end - within - 1) / elems.stride + 1);
    }
    if (!walk(segment.part, part, sink)) return false;
    elems.begin += part.count * elems.stride;
    elems.count -= part.count;
  }
  return true;
}

// Neighbours that stay neighbours, and go on alike in the next dim: of a key that packs 8 rows of a column into an
// element, a row of the transposed tensor is one such step. `elems` begins where the last dim does, and may have less
// than it.
Rounds Trace::rounds_alike(const Node& node, Progression elems) {
  const Dim& last = node.dims.back();
  if (node.dims.size() < 2 || elems.stride != 1 || last.part_stride != 1 || elems.begin % last.size != 0) return {};
  const Dim& next = node.dims[node.dims.size() - 2];
  const std::uint64_t index = elems.begin / next.stride % next.size;
  return {std::min(elems.count / last.size, next.size - index), next.part_stride};
}

bool Trace::walk_dims(const Node& node, Progression elems, OriginSink& sink) const {
  const auto& dims = node.dims;
  // The outermost dim that a step moves in. Where a step is not a whole number of its strides, elements are
  // followed one by one.
  std::size_t moving = 0;
  while (moving + 1 < dims.size() && dims[moving].stride > elems.stride) ++moving;
  // A whole step changes the index of this dim only, until the dim ends: every dim outside it has a larger stride.
  const bool steps = elems.stride % dims[moving].stride == 0;
  const std::uint64_t step = elems.stride / dims[moving].stride;
  while (elems.count > 0) {
    Progression part{0, 1, 1};
    std::uint64_t rest = elems.begin;
    std::uint64_t moving_index = 0;
    for (std::size_t d = 0; d < dims.size(); ++d) {
      const std::uint64_t index = rest / dims[d].stride;
      rest -= index * dims[d].stride;
      part.begin += index * dims[d].part_stride;
      if (d == moving) moving_index = index;
    }
    if (const Rounds rounds = rounds_alike(node, elems); rounds.count > 1) {
      part.count = dims.back().size;
      if (!walk_rounds(node.part, part, rounds, sink)) return false;
      elems.begin += rounds.count * part.count;
      elems.count -= rounds.count * part.count;
      continue;
    }
    if (steps) {
      part.count = std::min(elems.count, (dims[moving].size - 1 - moving_index) / step + 1);
      part.stride = step * dims[moving].part_stride;
    }
    if (!walk(node.part, part, sink)) return false;
    elems.begin += part.count * elems.stride;
    elems.count -= part.count;
  }
  return true;
}

}  // namespace lading::checker
