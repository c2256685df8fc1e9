#include <algorithm>
#include <atomic>

#include "layout/chunk.h"
#include "layout/layout.h"
#include "layout/region.h"

namespace lading::layout {
namespace {

using Runs = std::vector<Run>;

std::atomic<std::uint64_t> worked_out = 0;

std::uint64_t length(const Runs& runs) { return runs.empty() ? 0 : runs.back().local_begin + runs.back().size; }

/// Picks intervals of a list of runs, one behind the other, and numbers what it picked anew.
class Picker {
 public:
  explicit Picker(const Runs& from) : from_(from) {}

  /// Local indices of the old list. Intervals must ascend: each run is looked at once.
  void take(Interval wanted) {
    while (next_ < from_.size() && from_[next_].local_begin + from_[next_].size <= wanted.begin) ++next_;
    for (std::size_t i = next_; i < from_.size() && from_[i].local_begin < wanted.end; ++i) {
      const Run& run = from_[i];
      const std::uint64_t begin = std::max(run.local_begin, wanted.begin);
      const std::uint64_t end = std::min(run.local_begin + run.size, wanted.end);
      if (begin < end) append(run.begin + (begin - run.local_begin), end - begin);
    }
  }

  [[nodiscard]] Runs picked() && { return std::move(picked_); }

 private:
  void append(std::uint64_t begin, std::uint64_t size) {
    if (!picked_.empty() && picked_.back().begin + picked_.back().size == begin) {
      picked_.back().size += size;
    } else {
      picked_.push_back({begin, length(picked_), size});
    }
  }

  const Runs& from_;
  std::size_t next_ = 0;
  Runs picked_;
};

Runs strided(const Runs& runs, std::uint64_t split_factor, Seat seat) {
  const std::uint64_t elems = length(runs);
  Picker picker(runs);
  // Groups behind the last element are empty, and there may be very many of them.
  for (std::uint64_t g = 0; g < split_factor; ++g) {
    const Interval group = chunk(elems, {g, split_factor});
    if (group.begin == group.end) break;
    const Interval part = chunk(group.end - group.begin, seat);
    picker.take({group.begin + part.begin, group.begin + part.end});
  }
  return std::move(picker).picked();
}

Shape shape_of(const std::vector<Runs>& runs) {
  Shape shape;
  for (const Runs& dim : runs) shape.push_back(length(dim));
  return shape;
}

std::uint64_t num_elems(const Shape& shape) {
  const auto elems = shape.num_elems();
  LADING_CHECK(elems.has_value());
  return *elems;
}

/// What of [0, elems), which begins at `offset` of a shared line, lies in this stretch of it.
Region::Flat within(std::uint64_t elems, std::uint64_t offset, Interval stretch) {
  const std::uint64_t begin = std::clamp(stretch.begin, offset, offset + elems);
  const std::uint64_t end = std::clamp(stretch.end, begin, offset + elems);
  return {begin - offset, end - offset, begin < end ? begin - stretch.begin : 0};
}

void cut_flat(Region& region, std::uint64_t elems, std::uint64_t pad_multiple, Seat seat) {
  // ZeRO++ pads its second partition to the whole world, though it divides among fewer: hence the multiple.
  const std::uint64_t padded = round_up(elems, pad_multiple == 0 ? seat.size : pad_multiple);
  const std::uint64_t part = padded / seat.size;
  region.flat = within(elems, 0, {seat.index * part, (seat.index + 1) * part});
  region.buffer_elems = part;
}

void cut_flat_group(Region& region, std::uint64_t elems, const Cut& cut, Seat seat) {
  region.flat = within(elems, cut.group_offset_elems, chunk(cut.group_elems, seat));
  // FSDP1 pads every rank's part on the right to the size of the first.
  region.buffer_elems = divide_up(cut.group_elems, seat.size);
  region.flat_parameter = cut.flat_parameter;
}

Region absent(std::size_t dims) {
  Region region;
  region.present = false;
  region.runs.resize(dims);
  region.local_shape = shape_of(region.runs);
  return region;
}

}  // namespace

std::uint64_t regions_worked_out() { return worked_out.load(std::memory_order_relaxed); }

Region region_of(const Shape& global, const std::vector<Cut>& cuts, const Mesh& mesh, std::uint64_t rank) {
  worked_out.fetch_add(1, std::memory_order_relaxed);
  Region region;
  region.runs.resize(global.rank());
  for (std::size_t d = 0; d < global.rank(); ++d) {
    if (global[d] > 0) region.runs[d].push_back({0, 0, global[d]});
  }
  for (const Cut& cut : cuts) {
    const Seat seat = mesh.seat(cut.axes, rank);
    switch (cut.kind) {
      case CutKind::kShard:
      case CutKind::kStridedShard: {
        LADING_CHECK(cut.dim < region.runs.size());
        Runs& runs = region.runs[cut.dim];
        runs = strided(runs, cut.kind == CutKind::kShard ? 1 : cut.split_factor, seat);
        break;
      }
      case CutKind::kOwner:
        if (std::find(cut.owners.begin(), cut.owners.end(), seat.index) == cut.owners.end()) {
          return absent(global.rank());
        }
        break;
      case CutKind::kFlat: cut_flat(region, num_elems(shape_of(region.runs)), cut.pad_multiple, seat); break;
      case CutKind::kFlatGroup: cut_flat_group(region, num_elems(global), cut, seat); break;
    }
  }
  region.local_shape = shape_of(region.runs);
  if (!region.flat) region.buffer_elems = num_elems(region.local_shape);
  return region;
}

std::uint64_t Region::owned_elems() const {
  if (!present) return 0;
  return flat ? flat->end - flat->begin : num_elems(local_shape);
}

}  // namespace lading::layout
