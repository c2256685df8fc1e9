#include "layout/owned_runs.h"

#include <iterator>

namespace lading::layout {
namespace {

bool is_whole(const std::vector<Run>& runs, std::uint64_t extent) {
  return runs.size() == 1 && runs[0].begin == 0 && runs[0].size == extent;
}

}  // namespace

OwnedRuns::OwnedRuns(const Region& region, const Shape& global) {
  owned_elems_ = region.owned_elems();
  if (owned_elems_ == 0) return;
  if (region.flat) {
    buffer_begin_ = region.flat->buffer_begin;
    product_begin_ = region.flat->begin;
  }
  std::size_t cut = global.rank();
  while (cut > 0 && is_whole(region.runs[cut - 1], global[cut - 1])) inner_ *= global[--cut];
  dims_.resize(cut);
  std::uint64_t local_stride = inner_;
  std::uint64_t global_stride = inner_;
  for (std::size_t d = cut; d-- > 0;) {
    dims_[d] = {region.runs[d], local_stride, global_stride, region.local_shape[d]};
    local_stride *= region.local_shape[d];
    global_stride *= global[d];
  }
}

OwnedRuns::Cursor OwnedRuns::at(std::uint64_t buffer_elem) const {
  if (buffer_elem >= buffer_begin_ + owned_elems_) return {buffer_elem, 0, 0};
  const std::uint64_t held = product_begin_ + (buffer_elem - buffer_begin_);
  if (dims_.empty()) return {buffer_elem, held, owned_elems_ - (buffer_elem - buffer_begin_)};
  const std::uint64_t inside = held % inner_;
  Cursor cursor{buffer_elem, inside, 0};
  for (std::size_t d = 0; d < dims_.size(); ++d) {
    const Dim& dim = dims_[d];
    const std::uint64_t index = held / dim.local_stride % dim.local_size;
    const auto after = std::upper_bound(dim.runs.begin(), dim.runs.end(), index,
                                        [](std::uint64_t i, const Run& run) { return i < run.local_begin; });
    const Run& run = *std::prev(after);
    cursor.global += (run.begin + index - run.local_begin) * dim.global_stride;
    if (d + 1 == dims_.size()) cursor.left = (run.local_begin + run.size - index) * inner_ - inside;
  }
  return cursor;
}

}  // namespace lading::layout
