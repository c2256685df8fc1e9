// CudaLane: moves out of quantized tensors. Payloads cross the bus, and a kernel dequantizes while it distributes.
#include <algorithm>
#include <numeric>
#include <vector>

#include "base/loop_nest.h"
#include "device/cuda/cuda_lane.h"
#include "device/cuda/dequantize_lines.h"
#include "device/cuda/scale_dims.h"

namespace lading::device::cuda {
namespace {

constexpr std::size_t kMaxDequantizeJobs = JobPages::kPageBytes / sizeof(DequantizeJob);

// A move whose loops have the largest steps in the target first, so that threads beside each other write bytes beside
// each other.
class InTargetOrder {
 public:
  explicit InTargetOrder(const Move& move) : move_(move), scaling_(*move.scaling) {
    std::vector<std::size_t> order(move.loops.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return move.loops[a].target_stride_bytes > move.loops[b].target_stride_bytes;
    });
    for (const std::size_t i : order) {
      loops_.push_back(move.loops[i]);
      strides_elems_.push_back(move.scaling->strides_elems[i]);
    }
    scaling_.strides_elems = strides_elems_;
    move_.loops = loops_;
    move_.scaling = &scaling_;
  }
  InTargetOrder(const InTargetOrder&) = delete;
  InTargetOrder& operator=(const InTargetOrder&) = delete;

  [[nodiscard]] const Move& get() const { return move_; }

 private:
  Move move_;
  Scaling scaling_;
  std::vector<ByteLoop> loops_;
  std::vector<std::uint64_t> strides_elems_;
};

}  // namespace

void CudaLane::add_dequantize_jobs(const Move& any_order) {
  LADING_CHECK(any_order.scaling->strides_elems.size() == any_order.loops.size());
  const InTargetOrder in_order(any_order);
  const Move& move = in_order.get();
  // The kernel knows six loops; those outside of them are walked here.
  if (move.loops.size() > kMaxJobLoops) {
    const ByteLoop& outer = move.loops.front();
    Scaling scaling = *move.scaling;
    scaling.strides_elems = move.scaling->strides_elems.subspan(1);
    for (std::uint64_t i = 0; i < outer.count; ++i) {
      Move part = move;
      part.source += i * outer.source_stride_bytes;
      part.target += i * outer.target_stride_bytes;
      part.loops = move.loops.subspan(1);
      scaling.first_elem = move.scaling->first_elem + i * move.scaling->strides_elems.front();
      part.scaling = &scaling;
      add_dequantize_jobs(part);
    }
    return;
  }
  DequantizeJob job = dequantize_job(move);
  note_read(move);
  std::uint64_t at_once = kJobBytes * 8 / bits(move.to);
  if (const auto loop = loop_of_lines(job)) {
    if (job.loops[*loop].count % rounds_of_line(job) != 0) return add_in_two_parts(move, *loop, rounds_of_line(job));
    take_lines(*loop, job);
    at_once /= job.line_rounds;
  }
  const std::uint64_t elems = job.elems;
  for (std::uint64_t begin = 0; begin < elems; begin += at_once) {
    job.first_elem = begin;
    job.elems = std::min(at_once, elems - begin);
    dequantizations_.push_back(job);
  }
}

// The rounds of one of the job's loops that are a multiple of so many, and the others.
void CudaLane::add_in_two_parts(const Move& move, std::uint32_t job_loop, std::uint32_t multiple) {
  std::size_t at = 0;  // the same loop in the move, which may have loops of one round
  for (std::uint32_t i = 0; move.loops[at].count == 1 || i++ < job_loop;) ++at;
  std::vector<ByteLoop> loops(move.loops.begin(), move.loops.end());
  Scaling scaling = *move.scaling;
  Move part = move;
  part.loops = loops;
  part.scaling = &scaling;
  const std::uint64_t rest = loops[at].count % multiple;
  loops[at].count -= rest;
  add_dequantize_jobs(part);
  part.source += loops[at].count * loops[at].source_stride_bytes;
  part.target += loops[at].count * loops[at].target_stride_bytes;
  scaling.first_elem += loops[at].count * scaling.strides_elems[at];
  loops[at].count = rest;
  add_dequantize_jobs(part);
}

DequantizeJob CudaLane::dequantize_job(const Move& move) {
  const BlockScales& scales = *move.scaling->scales;
  const CudaScales::Entry& entry = scales_.of(scales);
  DequantizeJob job = {};
  job.source = static_cast<std::uint64_t>(move.source - current_buffer().data);
  job.target = device_address(move.target);
  job.run_elems = move.run_elems;
  job.elems = move.run_elems * rounds_of(move.loops);
  job.cast = {static_cast<std::uint32_t>(move.from), static_cast<std::uint32_t>(move.to)};
  describe_scales(scales, move.to, job);
  job.first_code = move.scaling->first_code;
  for (std::size_t i = 0; i < move.loops.size(); ++i) {
    const ByteLoop& loop = move.loops[i];
    if (loop.count == 1) continue;
    job.loops[job.loop_count++] = {loop.count, loop.source_stride_bytes, loop.target_stride_bytes,
                                   move.scaling->strides_elems[i]};
  }
  place_dims(entry.dims,
             {entry.values, entry.zeros, bits(scales.dtype) / 8, scales.first, move.scaling->first_elem, entry.groups},
             job);
  return job;
}

Result<void> CudaLane::launch_dequantizations(Address source) {
  if (dequantizations_.empty()) return {};
  LADING_TRY(order(streams_.kernels, scales_.taken()));
  for (DequantizeJob& job : dequantizations_) job.source += source;
  for (std::size_t begin = 0; begin < dequantizations_.size(); begin += kMaxDequantizeJobs) {
    const auto jobs = std::span<const DequantizeJob>(dequantizations_)
                          .subspan(begin, std::min(kMaxDequantizeJobs, dequantizations_.size() - begin));
    LADING_ASSIGN_OR_RETURN(Address list, pages_.put(std::as_bytes(jobs)));
    auto count = static_cast<std::uint32_t>(jobs.size());
    void* parameters[] = {&list, &count};
    LADING_TRY(launch(gpu_->dequantize_kernel(), count, parameters));
  }
  return {};
}

}  // namespace lading::device::cuda
