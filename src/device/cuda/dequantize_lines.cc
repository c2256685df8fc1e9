#include "device/cuda/dequantize_lines.h"

#include "device/cuda/dequantize_plan.h"
#include "lading/result.h"

namespace lading::device::cuda {
namespace {

// Whether each line of this loop stays within one block along the dim, and no element of the job leaves it by another
// way: through a carry from the dims within.
bool stays_in_block(const DequantizeJob& job, std::uint32_t loop, std::uint32_t dim) {
  std::uint64_t inner = 1;  // elements from one index of the dim to the next
  std::uint64_t within = 0;
  for (std::uint32_t d = job.dim_count; --d > dim;) {
    within += job.dims[d].first * inner;
    inner *= job.dims[d].extent;
  }
  const std::uint64_t stride = job.loops[loop].stride_elems;
  if (stride == 0 || stride % inner != 0) return false;
  const std::uint64_t line = stride / inner * rounds_of_line(job);
  const DequantizeDim& here = job.dims[dim];
  if (here.block % line != 0 || here.first % line >= stride / inner) return false;
  if (dim != 0 && here.extent % line != 0) return false;
  for (std::uint32_t i = 0; i < job.loop_count; ++i) {
    if (i == loop || job.loops[i].stride_elems % (inner * line) == 0) continue;
    within += (job.loops[i].count - 1) * job.loops[i].stride_elems;
  }
  return within < inner;
}

bool shares_scales(const DequantizeJob& job, std::uint32_t loop) {
  if (job.dim_count == 0) return true;
  for (std::uint32_t dim = 0; dim < job.dim_count; ++dim) {
    if (stays_in_block(job, loop, dim)) return true;
  }
  return false;
}

}  // namespace

std::uint32_t rounds_of_line(const DequantizeJob& job) { return kDequantizeUnitBytes / result_bytes(job); }

std::optional<std::uint32_t> loop_of_lines(const DequantizeJob& job) {
  if (job.run_elems != 1 || !has_dequantize_units(job) || !is_small(job)) return {};
  std::optional<std::uint32_t> found;
  for (std::uint32_t i = 0; i < job.loop_count; ++i) {
    const DequantizeLoop& loop = job.loops[i];
    const bool is_dense = loop.source_stride_bytes == 1 || loop.target_stride_bytes == result_bytes(job);
    if (!is_dense || loop.count < rounds_of_line(job) || !shares_scales(job, i)) continue;
    // Bytes side by side save more than results do: those of other threads are beside them.
    if (!found || loop.source_stride_bytes == 1) found = i;
  }
  return found;
}

void take_lines(std::uint32_t loop, DequantizeJob& job) {
  const std::uint32_t rounds = rounds_of_line(job);
  DequantizeLoop& taken = job.loops[loop];
  LADING_CHECK(taken.count % rounds == 0);
  job.line_rounds = rounds;
  job.line_source_stride_bytes = taken.source_stride_bytes;
  job.line_target_stride_bytes = taken.target_stride_bytes;
  taken.count /= rounds;
  taken.source_stride_bytes *= rounds;
  taken.target_stride_bytes *= rounds;
  taken.stride_elems *= rounds;
  job.elems /= rounds;
}

}  // namespace lading::device::cuda
