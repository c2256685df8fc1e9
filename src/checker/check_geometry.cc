#include "checker/check_geometry.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "base/text.h"

namespace lading::checker {
namespace {

using layout::Cut;
using layout::CutKind;

Unexpected<Error> refuse(std::string message, std::string_view rule) {
  return fail(Error(Code::kPlanCheck, std::move(message)).by_rule(rule));
}

struct Interval {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// torch.chunk: pieces of ceil(n / pieces); the last ones may be short or empty (R53).
Interval chunk(std::uint64_t n, std::uint64_t pieces, std::uint64_t index) {
  const std::uint64_t size = n / pieces + (n % pieces == 0 ? 0 : 1);
  // (index + 1) * size is at most n + pieces, and both are below 2^63.
  return {std::min(n, index * size), std::min(n, (index + 1) * size)};
}

std::uint64_t group_of(const Cut& cut, const layout::Mesh& mesh) {
  std::uint64_t size = 1;
  for (const std::size_t axis : cut.axes) size *= mesh.axes()[axis].size;
  return size;
}

std::uint64_t index_in_group(const Cut& cut, const Seating& seating) {
  std::uint64_t index = 0;
  for (const std::size_t axis : cut.axes) {
    index = index * seating.mesh.axes()[axis].size + seating.coordinate[axis];
  }
  return index;
}

std::uint64_t round_up(std::uint64_t n, std::uint64_t multiple) {
  return (n / multiple + (n % multiple == 0 ? 0 : 1)) * multiple;
}

Result<void> check_cut(const Shape& shape, const Cut& cut, std::uint64_t group) {
  if (cut.kind == CutKind::kShard || cut.kind == CutKind::kStridedShard) {
    if (cut.dim >= shape.rank()) {
      return refuse(fmt::format("dim {} of a tensor of {} dims is cut", cut.dim, shape.rank()), "R53");
    }
    if (cut.kind == CutKind::kStridedShard && cut.split_factor == 0) {
      return refuse("a strided shard has no groups", "R55");
    }
  }
  if (cut.kind == CutKind::kFlat && cut.pad_multiple != 0 &&
      (cut.pad_multiple > kMaxSize || cut.pad_multiple % group != 0)) {
    return refuse(fmt::format("a flat tensor is padded to a multiple of {}, for {} ranks", cut.pad_multiple, group),
                  "R56");
  }
  if (cut.kind == CutKind::kFlatGroup) {
    const auto end = checked_add(cut.group_offset_elems, *shape.num_elems());
    if (!end || *end > cut.group_elems || cut.group_elems > kMaxSize - layout::Mesh::kMaxRanks ||
        cut.flat_parameter.empty()) {
      return refuse(fmt::format("the tensor does not fit into the flat buffer {}", quote(cut.flat_parameter)), "R41");
    }
  }
  return {};
}

}  // namespace

Seating::Seating(const layout::Mesh& mesh_, std::uint64_t rank) : mesh(mesh_), coordinate(mesh_.axes().size()) {
  for (std::size_t axis = coordinate.size(); axis-- > 0;) {
    coordinate[axis] = rank % mesh.axes()[axis].size;
    rank /= mesh.axes()[axis].size;
  }
}

Result<void> check_axes(const layout::Mesh& mesh) {
  std::optional<std::uint64_t> ranks = 1;
  for (const layout::Axis& axis : mesh.axes()) {
    if (axis.size == 0) return refuse(fmt::format("axis {} of the mesh has no ranks", quote(axis.name)), "R53");
    if (ranks) ranks = checked_mul(*ranks, axis.size);
  }
  if (!ranks || *ranks > layout::Mesh::kMaxRanks) return refuse("the mesh has too many ranks", "R53");
  return {};
}

Result<void> check_slot(const Shape& shape, const layout::Slot& slot, const layout::Mesh& mesh) {
  // Padding and chunks round up by less than 2^63 and 2^32: in 64 bits that never overflows.
  if (!shape.num_elems()) return refuse("the tensor is too large", "R41");
  std::vector<std::size_t> used;
  for (std::size_t c = 0; c < slot.cuts.size(); ++c) {
    const Cut& cut = slot.cuts[c];
    for (const std::size_t axis : cut.axes) {
      if (axis >= mesh.axes().size()) return refuse("a cut names an axis that the mesh does not have", "R53");
      // Cut by one axis twice, parts of the tensor would be on no rank.
      if (std::find(used.begin(), used.end(), axis) != used.end()) {
        return refuse(fmt::format("axis {} cuts the tensor twice", quote(mesh.axes()[axis].name)), "R53");
      }
      used.push_back(axis);
    }
    LADING_TRY(check_cut(shape, cut, group_of(cut, mesh)));
    const bool last = c + 1 == slot.cuts.size();
    if (cut.kind == CutKind::kFlat && !last) return refuse("a flat tensor is cut again", "R41");
    const bool mixes = cut.kind == CutKind::kFlatGroup &&
                       std::count_if(slot.cuts.begin(), slot.cuts.end(),
                                     [](const Cut& other) { return other.kind != CutKind::kOwner; }) != 1;
    if (mixes) return refuse("a tensor in a shared flat buffer is cut otherwise too", "R41");
  }
  return {};
}

bool is_present(const layout::Slot& slot, const Seating& seating) {
  return std::all_of(slot.cuts.begin(), slot.cuts.end(), [&](const Cut& cut) {
    return cut.kind != CutKind::kOwner ||
           std::find(cut.owners.begin(), cut.owners.end(), index_in_group(cut, seating)) != cut.owners.end();
  });
}

// Cuts apply one after the other to *local* indices: each chooses among the indices that the cuts before it left (R54).
// `held` translates local indices back to global ones. A dim of 8, as seen by one rank:
//
//   shard, index 1 of 2                             local 0 1 2 3 = global 4 5 6 7    held {begin 4, at 0, size 4}
//   strided shard, 2 groups, index 0 of 2 in each   local 0 1     = global 4 6        held {4, 0, 1}, {6, 1, 1}
Result<Share> Share::of(const Shape& shape, const layout::Slot& slot, const Seating& seating) {
  Share share;
  const bool sharded = std::any_of(slot.cuts.begin(), slot.cuts.end(), [](const Cut& cut) {
    return cut.kind == CutKind::kShard || cut.kind == CutKind::kStridedShard;
  });
  // A tensor that is whole, or flat, is one stretch: its dims say nothing.
  if (sharded) {
    for (const std::uint64_t n : shape) share.dims_.push_back({n, n, {}});
  }
  const auto count = [&] {
    share.end_ = sharded ? 1 : *shape.num_elems();
    for (const Dim& dim : share.dims_) share.end_ *= dim.local;
    share.buffer_elems_ = share.end_;
  };
  count();
  for (const Cut& cut : slot.cuts) {
    const std::uint64_t index = index_in_group(cut, seating);
    const std::uint64_t size = group_of(cut, seating.mesh);
    switch (cut.kind) {
      case CutKind::kOwner: break;
      case CutKind::kShard:
      case CutKind::kStridedShard:
        LADING_TRY(take_chunks(share.dims_[cut.dim], cut, index, size));
        count();
        break;
      case CutKind::kFlat: share.take_flat(cut, index, size); break;
      case CutKind::kFlatGroup: share.take_group(cut, index, size); break;
    }
  }
  return share;
}

// Of the indices that are held, in order: `split_factor` groups, and of each the chunk of this rank (R55).
Result<void> Share::take_chunks(Dim& dim, const Cut& cut, std::uint64_t index, std::uint64_t size) {
  const bool strided = cut.kind == CutKind::kStridedShard;
  if (!strided && cut.even && dim.local % size != 0) {
    return refuse(fmt::format("{} elements of dim {} are to be cut evenly among {}", dim.local, cut.dim, size), "R53");
  }
  const std::vector<Held> before = dim.held.empty() ? std::vector<Held>{{0, 0, dim.local}} : std::move(dim.held);
  const std::uint64_t groups = strided ? cut.split_factor : 1;
  std::vector<Held> after;
  std::uint64_t taken = 0;
  for (std::uint64_t g = 0; g < groups; ++g) {
    const Interval group = chunk(dim.local, groups, g);
    if (group.begin == group.end) break;  // and so are all that follow
    const Interval mine = chunk(group.end - group.begin, size, index);
    std::uint64_t at = group.begin + mine.begin;
    const std::uint64_t end = group.begin + mine.end;
    auto held = std::upper_bound(before.begin(), before.end(), at,
                                 [](std::uint64_t a, const Held& h) { return a < h.at + h.size; });
    for (; at < end; ++held) {
      const std::uint64_t first = held->begin + (at - held->at);
      const std::uint64_t length = std::min(end, held->at + held->size) - at;
      if (!after.empty() && after.back().begin + after.back().size == first) {
        after.back().size += length;
      } else {
        after.push_back({first, taken, length});
      }
      taken += length;
      at += length;
    }
    if (after.size() > layout::kMaxRuns) return refuse("a dim is cut into too many runs", "R55");
  }
  dim.local = taken;
  dim.held = std::move(after);
  if (dim.held.empty()) dim.held.push_back({0, 0, 0});        // an empty list would mean all indices
  if (dim.held.front().size == dim.global) dim.held.clear();  // by one rank, which leaves it whole
  return {};
}

// 10 elements on 4 ranks are parts of 3: the last rank has 1 element and 2 of padding.
void Share::take_flat(const Cut& cut, std::uint64_t index, std::uint64_t size) {
  is_flat_ = true;
  const std::uint64_t elems = end_;
  const std::uint64_t part = round_up(elems, cut.pad_multiple == 0 ? size : cut.pad_multiple) / size;
  begin_ = std::min(elems, index * part);
  end_ = std::min(elems, (index + 1) * part);
  buffer_elems_ = part;
  padding_elems_ = part - (end_ - begin_);
}

// The shared buffer is cut like torch.chunk, and short parts are as long in memory as the first one. Its gaps
// belong to the framework. A buffer of 10 on 4 ranks has the parts [0, 3) [3, 6) [6, 9) [9, 10). Of a tensor of 5 at
// offset 4, rank 1 holds elements [0, 2) from place 1 of its memory on, rank 2 holds [2, 5) from place 0 on.
void Share::take_group(const Cut& cut, std::uint64_t index, std::uint64_t size) {
  is_flat_ = true;
  const Interval first = chunk(cut.group_elems, size, 0);
  const Interval part = chunk(cut.group_elems, size, index);
  const std::uint64_t offset = cut.group_offset_elems;
  const std::uint64_t begin = std::clamp(offset, part.begin, part.end);
  const std::uint64_t end = std::clamp(offset + end_, part.begin, part.end);
  buffer_elems_ = first.end;
  buffer_begin_ = begin - part.begin;
  begin_ = begin == end ? 0 : begin - offset;  // a part that ends in front of the tensor would wrap
  end_ = begin_ + (end - begin);
}

bool Share::is(const layout::Region& region, const Shape& shape) const {
  if (!region.present || region.runs.size() != shape.rank() || region.local_shape.rank() != shape.rank()) return false;
  for (std::size_t d = 0; d < shape.rank(); ++d) {
    const bool is_whole = dims_.empty() || dims_[d].held.empty();
    const std::vector<Held> held = is_whole ? std::vector<Held>{{0, 0, shape[d]}} : dims_[d].held;
    const bool is_none = held.front().size == 0;
    const std::vector<layout::Run>& runs = region.runs[d];
    if (runs.size() != (is_none ? 0 : held.size())) return false;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (runs[i] != layout::Run{held[i].begin, held[i].at, held[i].size}) return false;
    }
    if (region.local_shape[d] != (is_whole ? shape[d] : dims_[d].local)) return false;
  }
  if (region.buffer_elems != buffer_elems_ || region.flat.has_value() != is_flat_) return false;
  if (!is_flat_) return true;
  if (begin_ == end_) return region.flat->begin == region.flat->end && region.flat->buffer_begin == 0;
  return *region.flat == layout::Region::Flat{begin_, end_, buffer_begin_};
}

// How many rows from this one on follow each other in the global tensor as they do here: all whose indices in the dims
// that are cut in front of `split` are neighbours. Only the last of these dims counts: the dims between it and `split`
// are whole, so rows stay row_step apart until its run ends.
std::uint64_t Share::rows_alike(std::uint64_t row, std::size_t split) const {
  std::uint64_t behind = 1;  // rows for one index of dim d
  for (std::size_t d = split; d-- > 0;) {
    const Dim& dim = dims_[d];
    if (dim.held.empty()) {
      behind *= dim.local;
      continue;
    }
    const std::uint64_t index = row / behind % dim.local;
    const auto held = std::upper_bound(dim.held.begin(), dim.held.end(), index,
                                       [](std::uint64_t at, const Held& h) { return at < h.at + h.size; });
    return (held->at + held->size - index) * behind - row % behind;
  }
  return behind - row;
}

// Rows 2-3 and columns 3-5 of a tensor [4, 6] are one visit, [15, 18) in 2 rounds, 6 apart:
//
//          0  1  2  3  4  5
//   row 2  .  .  . 15 16 17      split is dim 1, row_elems 3, row_step 6, base 2 * 6 = 12
//   row 3  .  .  . 21 22 23
bool Share::for_each_stretch(const Visit& visit) const {
  if (begin_ == end_) return true;
  const auto is_cut = [](const Dim& dim) { return !dim.held.empty(); };
  const auto last_cut = std::find_if(dims_.rbegin(), dims_.rend(), is_cut);
  if (last_cut == dims_.rend()) return visit(begin_, end_, {});

  // Behind the last dim that is cut everything is contiguous; in front of it, row by row.
  const auto split = static_cast<std::size_t>(dims_.rend() - last_cut) - 1;
  std::uint64_t inner = 1;
  for (std::size_t d = split + 1; d < dims_.size(); ++d) inner *= dims_[d].global;
  const std::uint64_t row_elems = dims_[split].local * inner;
  const std::uint64_t row_step = dims_[split].global * inner;
  std::uint64_t rounds = 1;
  for (std::uint64_t row = begin_ / row_elems; row * row_elems < end_; row += rounds) {
    // A flat cut may begin or end inside a row. Rows of several runs go one by one, because the buffer has all runs of
    // a row before the next row.
    const bool is_whole = begin_ <= row * row_elems && (row + 1) * row_elems <= end_;
    const bool is_one_run = dims_[split].held.size() == 1;
    rounds = is_whole && is_one_run ? std::min(rows_alike(row, split), end_ / row_elems - row) : 1;
    std::uint64_t rest = row;
    std::uint64_t stride = row_step;
    std::uint64_t base = 0;
    for (std::size_t d = split; d-- > 0;) {
      const Dim& dim = dims_[d];
      std::uint64_t index = rest % dim.local;
      rest /= dim.local;
      if (!dim.held.empty()) {
        const auto held = std::upper_bound(dim.held.begin(), dim.held.end(), index,
                                           [](std::uint64_t at, const Held& h) { return at < h.at + h.size; });
        index = held->begin + (index - held->at);
      }
      base += index * stride;
      stride *= dim.global;
    }
    for (const Held& held : dims_[split].held) {
      const std::uint64_t local = row * row_elems + held.at * inner;
      const std::uint64_t from = std::max(local, begin_);
      const std::uint64_t to = std::min(local + held.size * inner, end_);
      if (from >= to) continue;
      const std::uint64_t global = base + held.begin * inner + (from - local);
      if (!visit(global, global + (to - from), {rounds, row_step})) return false;
    }
  }
  return true;
}

}  // namespace lading::checker
