// The kernels: they find their job and their place, do what the *_body.h say, and add up what the threads of a block
// found. Compiled by clang alone, without any header of CUDA: docs/how-it-works/gpu-kernels.md.
#include <cstdint>

#include "device/cuda/dequantize_body.h"
#include "device/cuda/digest_body.h"
#include "device/cuda/fill_body.h"
#include "device/cuda/kernel_jobs.h"
#include "device/cuda/move_body.h"
#include "device/cuda/sample_body.h"

#define LADING_KERNEL extern "C" __attribute__((global)) __attribute__((launch_bounds(256)))
#define LADING_GPU __attribute__((device)) inline
#define LADING_SHARED __attribute__((shared))

namespace lading::device::cuda {
namespace {

// Host and GPU must agree on where fields stand; kernel_images_test.cc has the same line for the host.
static_assert(sizeof(MoveJob) == 200 && sizeof(DigestRange) == 32 && sizeof(FillJob) == 32 && sizeof(SampleJob) == 96);
static_assert(sizeof(DequantizeJob) == 504);
static_assert(kBlockThreads == 256);  // the launch bounds
static_assert(kMovePlanParts <= kBlockThreads / 32);
static_assert(kDequantizePlanParts <= 32 && kPayloads == kBlockThreads);

__attribute__((device)) const DigestTables kTablesOnGpu = kDigestTables;

LADING_GPU std::uint32_t thread_of_block() { return static_cast<std::uint32_t>(__nvvm_read_ptx_sreg_tid_x()); }
LADING_GPU std::uint32_t this_block() { return static_cast<std::uint32_t>(__nvvm_read_ptx_sreg_ctaid_x()); }

LADING_GPU ThreadPlace place_in_block() { return {thread_of_block(), kBlockThreads}; }
LADING_GPU ThreadPlace place_in_grid() {
  const auto blocks = static_cast<std::uint32_t>(__nvvm_read_ptx_sreg_nctaid_x());
  return {this_block() * kBlockThreads + thread_of_block(), blocks * kBlockThreads};
}

/// Jobs stand in host memory: the block reads its own once, all words at the same time.
template <class Job>
LADING_GPU void fetch_job(const Job* jobs, Job& here) {
  static_assert(sizeof(Job) % 4 == 0 && sizeof(Job) / 4 <= kBlockThreads);
  const std::uint32_t thread = thread_of_block();
  if (thread < sizeof(Job) / 4) {
    const std::uint64_t word = reinterpret_cast<std::uint64_t>(jobs + this_block()) + 4 * thread;
    reinterpret_cast<std::uint32_t*>(&here)[thread] = load<std::uint32_t>(word);
  }
  __syncthreads();
}

}  // namespace

LADING_KERNEL void lading_move(const MoveJob* jobs, std::uint32_t count) {
  LADING_SHARED MoveJob job;
  LADING_SHARED MovePlan plan;
  if (this_block() >= count) return;
  fetch_job(jobs, job);
  const std::uint32_t thread = thread_of_block();
  if (thread % 32 == 0 && thread / 32 < kMovePlanParts) make_plan_part(job, unit_of(job), thread / 32, plan);
  __syncthreads();
  move_body(job, plan, place_in_block());
}

LADING_KERNEL void lading_dequantize(const DequantizeJob* jobs, std::uint32_t count) {
  LADING_SHARED DequantizeJob job;
  LADING_SHARED DequantizePlan plan;
  if (this_block() >= count) return;
  fetch_job(jobs, job);
  // The first part takes longest and has a warp of its own; the others are dividers.
  const std::uint32_t thread = thread_of_block();
  if (thread == 0) make_plan_part(job, 0, plan);
  if (thread > 32 && thread - 32 < kDequantizePlanParts) make_plan_part(job, thread - 32, plan);
  make_plan_payload(job, thread, plan);
  __syncthreads();
  dequantize_body(job, plan, place_in_block());
}

LADING_KERNEL void lading_digest(const DigestRange* jobs, std::uint32_t count, std::uint64_t* sums) {
  LADING_SHARED DigestRange range;
  LADING_SHARED std::uint64_t lanes[kDigestLanes][kBlockThreads];
  if (this_block() >= count) return;
  fetch_job(jobs, range);
  const std::uint32_t thread = thread_of_block();
  const DigestSums mine = digest_body(range, reinterpret_cast<std::uint64_t>(&kTablesOnGpu), place_in_block());
  lanes[0][thread] = mine.lane0;
  lanes[1][thread] = mine.lane1;
  for (std::uint32_t half = kBlockThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) {
      lanes[0][thread] += lanes[0][thread + half];
      lanes[1][thread] += lanes[1][thread + half];
    }
  }
  if (thread == 0) {
    auto* account = reinterpret_cast<long long*>(sums + kDigestLanes * range.account);
    __nvvm_atom_add_gen_ll(account, static_cast<long long>(lanes[0][0]));
    __nvvm_atom_add_gen_ll(account + 1, static_cast<long long>(lanes[1][0]));
  }
}

LADING_KERNEL void lading_fill(FillJob job) { fill_body(job, place_in_grid()); }

LADING_KERNEL void lading_sample(SampleJob job) { sample_body(job, place_in_grid()); }

}  // namespace lading::device::cuda
