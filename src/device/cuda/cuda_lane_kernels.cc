// CudaLane: what kernels do to destinations by themselves: constants, random values, digests.
#include <algorithm>

#include "base/element_bytes.h"
#include "device/cuda/cuda_lane.h"

namespace lading::device::cuda {
namespace {

// Digests wait until a launch is worth it.
constexpr std::uint64_t kDigestFlushBytes = 64 << 20;
constexpr std::size_t kMaxDigestJobs = JobPages::kPageBytes / sizeof(DigestRange);
constexpr std::uint64_t kMaxBlocks = 1024;
constexpr std::uint64_t kElemsPerThread = 8;

std::uint64_t blocks_for(std::uint64_t elems) {
  const std::uint64_t per_block = kBlockThreads * kElemsPerThread;
  return std::clamp<std::uint64_t>((elems + per_block - 1) / per_block, 1, kMaxBlocks);
}

}  // namespace

Result<void> CudaLane::fill(const Fill& fill) {
  if (fill.elems == 0) return {};
  LADING_TRY(keep(end_bounce()));
  const bool is_packed = bits(fill.dtype) % 8 != 0;  // of packed dtypes there is only zero
  FillJob job = {};
  job.target = device_address(fill.target);
  job.elems = is_packed ? bytes_of_elems(fill.elems, fill.dtype) : fill.elems;
  job.bits = fill.bits;
  job.element_bytes = is_packed ? 1 : bits(fill.dtype) / 8;
  LADING_TRY(keep(order_after_copies()));
  void* parameters[] = {&job};
  return keep(launch(gpu_->fill_kernel(), blocks_for(job.elems), parameters));
}

Result<void> CudaLane::sample(const Sample& sample) {
  if (sample.elems == 0) return {};
  LADING_TRY(keep(end_bounce()));
  SampleJob job = {};
  job.target = device_address(sample.target);
  job.first_elem = sample.first_elem;
  job.elems = sample.elems;
  job.key = sample.key.value;
  job.dtype = static_cast<std::uint32_t>(sample.dtype);
  job.parameters = sample.parameters;
  LADING_TRY(keep(order_after_copies()));
  void* parameters[] = {&job};
  return keep(launch(gpu_->sample_kernel(), blocks_for(job.elems), parameters));
}

Result<void> CudaLane::digest(const DigestJob& job) {
  LADING_CHECK(sums_ != 0);
  // Cut where the tensor's blocks of keys end, so that kernels meet whole ones.
  std::uint64_t done = 0;
  while (done < job.size_bytes) {
    const std::uint64_t global = job.global_begin_bytes + done;
    const std::uint64_t size_bytes = std::min(job.size_bytes - done, kJobBytes - global % kJobBytes);
    ranges_.push_back({device_address(job.memory) + done, size_bytes, global, job.account});
    done += size_bytes;
  }
  ranges_bytes_ += job.size_bytes;
  if (ranges_bytes_ < kDigestFlushBytes && ranges_.size() < kMaxDigestJobs) return {};
  return keep(flush_digests());
}

Result<void> CudaLane::flush_digests() {
  if (ranges_.empty()) return {};
  LADING_TRY(prepare());
  LADING_TRY(end_bounce());
  LADING_TRY(order_after_copies());
  for (std::size_t begin = 0; begin < ranges_.size(); begin += kMaxDigestJobs) {
    const auto jobs =
        std::span<const DigestRange>(ranges_).subspan(begin, std::min(kMaxDigestJobs, ranges_.size() - begin));
    LADING_ASSIGN_OR_RETURN(Address list, pages_.put(std::as_bytes(jobs)));
    auto count = static_cast<std::uint32_t>(jobs.size());
    void* parameters[] = {&list, &count, &sums_};
    LADING_TRY(launch(gpu_->digest_kernel(), count, parameters));
  }
  ranges_.clear();
  ranges_bytes_ = 0;
  return {};
}

Result<void> CudaLane::launch(Function kernel, std::uint64_t blocks, void** parameters) {
  return gpu_->call("launching a kernel", gpu_->driver().launch, kernel, static_cast<unsigned>(blocks), 1U, 1U,
                    unsigned{kBlockThreads}, 1U, 1U, 0U, streams_.kernels, parameters, static_cast<void**>(nullptr));
}

}  // namespace lading::device::cuda
