#include "ledger/recorded_region.h"

#include <algorithm>
#include <string>

#include "base/checked.h"
#include "lading/result.h"

namespace lading::ledger {
namespace {

std::uint64_t length(const std::vector<RecordedRun>& runs) {
  std::uint64_t sum = 0;
  for (const RecordedRun& run : runs) sum += run.size;
  return sum;
}

bool is_whole(const std::vector<RecordedRun>& runs, std::uint64_t extent) {
  return runs.size() == 1 && runs[0].begin == 0 && runs[0].size == extent;
}

void append(std::string& code, std::uint64_t number) {
  // Big-endian, so that codes sort as the numbers do.
  for (unsigned i = 8; i-- > 0;) code += static_cast<char>(number >> (8 * i) & 0xFF);
}

}  // namespace

std::uint64_t RecordedRegion::product_elems() const {
  std::uint64_t product = 1;
  for (const std::vector<RecordedRun>& dim : runs) product *= length(dim);
  return product;
}

std::uint64_t RecordedRegion::elems() const { return flat ? flat->end - flat->begin : product_elems(); }

RecordedRegion RecordedRegion::whole(const Shape& shape) {
  RecordedRegion region;
  region.runs.resize(shape.rank());
  for (std::size_t d = 0; d < shape.rank(); ++d) {
    if (shape[d] > 0) region.runs[d].push_back({0, shape[d]});
  }
  return region;
}

RecordedRegion RecordedRegion::of(const layout::Region& region) {
  RecordedRegion held;
  held.runs.resize(region.runs.size());
  for (std::size_t d = 0; d < held.runs.size(); ++d) {
    for (const layout::Run& run : region.runs[d]) held.runs[d].push_back({run.begin, run.size});
  }
  if (region.flat) held.flat = Stretch{region.flat->begin, region.flat->end};
  return held;
}

bool satisfies_invariants(const RecordedRegion& region, const Shape& shape) {
  if (region.runs.size() != shape.rank() || !shape.num_elems()) return false;
  for (std::size_t d = 0; d < shape.rank(); ++d) {
    std::uint64_t reached = 0;
    bool first = true;
    for (const RecordedRun& run : region.runs[d]) {
      const auto end = checked_add(run.begin, run.size);
      if (run.size == 0 || !end || *end > shape[d] || (!first && run.begin <= reached)) return false;
      reached = *end;
      first = false;
    }
  }
  // The dims are inside the shape, so that the product is at most its elements.
  return !region.flat || (region.flat->begin <= region.flat->end && region.flat->end <= region.product_elems());
}

std::string code_of(const RecordedRegion& region) {
  std::string code;
  for (const std::vector<RecordedRun>& dim : region.runs) {
    append(code, dim.size());
    for (const RecordedRun& run : dim) {
      append(code, run.begin);
      append(code, run.size);
    }
  }
  if (region.flat) {
    append(code, region.flat->begin);
    append(code, region.flat->end);
  }
  return code;
}

RegionCursor::RegionCursor(const RecordedRegion& region, const Shape& shape) : left_(region.elems()) {
  if (left_ == 0) return;
  std::size_t cut = shape.rank();
  while (cut > 0 && is_whole(region.runs[cut - 1], shape[cut - 1])) inner_ *= shape[--cut];
  dims_.resize(cut);
  std::uint64_t stride = inner_;
  for (std::size_t d = cut; d-- > 0;) {
    dims_[d].runs = &region.runs[d];
    dims_[d].stride = stride;
    stride *= shape[d];
  }
  seek(region.flat ? region.flat->begin : 0);
}

void RegionCursor::seek(std::uint64_t product_elem) {
  std::uint64_t rest = product_elem / inner_;
  for (std::size_t d = dims_.size(); d-- > 0;) {
    Dim& dim = dims_[d];
    const std::uint64_t size = length(*dim.runs);
    dim.offset = rest % size;
    rest /= size;
    for (dim.run = 0; dim.offset >= (*dim.runs)[dim.run].size; ++dim.run) dim.offset -= (*dim.runs)[dim.run].size;
  }
  // Without cuts there is one stretch, and `rest` is 0 unless it begins inside.
  settle(product_elem % inner_);
}

void RegionCursor::settle(std::uint64_t inside) {
  begin_ = inside;
  elems_ = left_;
  if (dims_.empty()) return;
  for (const Dim& dim : dims_) begin_ += ((*dim.runs)[dim.run].begin + dim.offset) * dim.stride;
  const Dim& last = dims_.back();
  elems_ = std::min(left_, ((*last.runs)[last.run].size - last.offset) * inner_ - inside);
}

void RegionCursor::advance(std::uint64_t elems) {
  LADING_CHECK(elems <= elems_);
  left_ -= elems;
  elems_ -= elems;
  begin_ += elems;
  if (elems_ == 0 && left_ > 0) next();
}

// The odometer: the last dim goes on by a run, the others by an index.
void RegionCursor::next() {
  for (std::size_t d = dims_.size(); d-- > 0;) {
    Dim& dim = dims_[d];
    const bool is_last = d + 1 == dims_.size();
    if (!is_last && ++dim.offset < (*dim.runs)[dim.run].size) break;
    dim.offset = 0;
    if (++dim.run < dim.runs->size()) break;
    dim.run = 0;
  }
  settle(0);
}

}  // namespace lading::ledger
