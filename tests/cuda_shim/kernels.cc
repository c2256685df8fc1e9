#include "cuda_shim/kernels.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "device/cuda/dequantize_body.h"
#include "device/cuda/digest_body.h"
#include "device/cuda/fill_body.h"
#include "device/cuda/kernel_jobs.h"
#include "device/cuda/move_body.h"
#include "device/cuda/sample_body.h"

namespace lading::cuda_shim {
namespace {

using namespace device::cuda;  // NOLINT(google-build-using-namespace): this file speaks of little else

constexpr Outcome kIllegal{kIllegalAddress, nullptr};

struct ListParameters {
  Address jobs;
  std::uint32_t count;
  std::uint32_t padding;
  Address sums;  // of digests alone
};

template <class T>
T parameters_of(const KernelLaunch& launch) {
  static_assert(sizeof(T) <= sizeof(launch.parameters));
  T value;
  std::memcpy(&value, launch.parameters.data(), sizeof(T));
  return value;
}

Address number_of(const std::byte* memory) { return reinterpret_cast<Address>(memory); }

template <class Body>
void for_each_thread(std::uint32_t threads, const Body& body) {
  for (std::uint32_t thread = 0; thread < threads; ++thread) body(ThreadPlace{thread, threads});
}

/// Job `i` of a list, which stands where the GPU can reach it.
template <class Job>
bool read_job(const Reach& reach, Address list, std::uint32_t i, Job& job) {
  const std::byte* const bytes = reach(list + i * sizeof(Job), sizeof(Job));
  if (bytes == nullptr || list % 4 != 0) return false;
  std::memcpy(&job, bytes, sizeof(Job));
  return true;
}

/// Looks at every run of a move; where all can be reached, its addresses become those of the host.
bool translate(const Reach& reach, MoveJob& job) {
  if (job.loop_count > kMaxJobLoops || job.run_elems == 0) return false;
  const UnitSize element = element_size(job.cast);
  std::byte* const source = reach(job.source, 1);
  std::byte* const target = reach(job.target, 1);
  if (source == nullptr || target == nullptr) return false;
  std::uint64_t elem = job.first_elem;
  const std::uint64_t end = job.first_elem + job.elems;
  while (elem < end) {
    const std::uint64_t in_run = elem % job.run_elems;
    const std::uint64_t elems = std::min(job.run_elems - in_run, end - elem);
    std::uint64_t from = in_run * element.source_bytes;
    std::uint64_t to = in_run * element.target_bytes;
    std::uint64_t rest = elem / job.run_elems;
    for (std::uint32_t i = job.loop_count; i-- > 0;) {
      from += rest % job.loops[i].count * job.loops[i].source_stride_bytes;
      to += rest % job.loops[i].count * job.loops[i].target_stride_bytes;
      rest /= job.loops[i].count;
    }
    // Each in the region in which its first byte lies: no other is beside it in memory of the stand-in.
    if (rest != 0 || reach(job.source + from, elems * element.source_bytes) != source + from ||
        reach(job.target + to, elems * element.target_bytes) != target + to) {
      return false;
    }
    elem += elems;
  }
  job.source = number_of(source);
  job.target = number_of(target);
  return true;
}

Outcome run_move(const KernelLaunch& launch, const Reach& reach, std::uint64_t& written_bytes) {
  const auto list = parameters_of<ListParameters>(launch);
  Outcome outcome;
  for (std::uint32_t block = 0; block < std::min(launch.blocks, list.count); ++block) {
    MoveJob job;
    if (!read_job(reach, list.jobs, block, job) || !translate(reach, job)) return kIllegal;
    MovePlan plan = {};
    for (std::uint32_t part = 0; part < kMovePlanParts; ++part) make_plan_part(job, unit_of(job), part, plan);
    for_each_thread(kBlockThreads, [&](ThreadPlace place) { move_body(job, plan, place); });
    written_bytes += job.elems * element_size(job.cast).target_bytes;
    // The first element of the move is of the first of its jobs.
    if (job.first_elem == 0) outcome.written = reinterpret_cast<std::byte*>(job.target);
  }
  return outcome;
}

/// Where the scale of an element is: its number or, of a job with groups, its number in group 0 and the element's place
/// in the groups.
struct ScalePlace {
  std::uint64_t number = 0;
  std::uint64_t group = 0;
};

/// `elem` is counted from the job's source.
ScalePlace scale_place(const DequantizeJob& job, std::uint64_t elem) {
  ScalePlace place;
  for (std::uint32_t d = job.dim_count; d-- > 0;) {
    const DequantizeDim& dim = job.dims[d];
    elem += dim.first;
    const std::uint64_t index = d != 0 ? elem % dim.extent : elem;
    if (job.groups != 0 && job.group_strides[d] != 0) {
      place.group += index * job.group_strides[d];
    } else {
      place.number += index / dim.block * dim.grid_stride;
    }
    elem /= dim.extent;
  }
  return place;
}

/// Where something that a job only has parts of would begin on the host. The parts are in one region, so that it is the
/// same for all.
class Begin {
 public:
  /// The part of these bytes from the begin on. Says whether it is there, and where the others are.
  bool find(const Reach& reach, Address begin, const ByteRange& part) {
    const std::byte* const there = reach(begin + part.begin, part.size_bytes());
    if (there == nullptr || (found_ && *found_ != number_of(there) - part.begin)) return false;
    found_ = number_of(there) - part.begin;
    return true;
  }
  [[nodiscard]] Address on_host() const { return found_.value_or(0); }

 private:
  std::optional<Address> found_;
};

/// As of a MoveJob; looks at every element, its group, its scale and its zero point.
bool translate(const Reach& reach, DequantizeJob& job) {
  if (job.loop_count > kMaxJobLoops || job.dim_count > kMaxScaleDims || job.run_elems == 0) return false;
  std::byte* const source = reach(job.source, 1);
  std::byte* const target = reach(job.target, 1);
  const std::uint64_t scale_bytes = element_bytes(static_cast<DType>(job.scale_dtype));
  if (source == nullptr || target == nullptr || job.scales % scale_bytes != 0) return false;
  const std::uint64_t codes_in_byte =
      job.code == kNoCode ? 1 : std::uint64_t{1} << device::log2_codes_in_byte(static_cast<CodeType>(job.code));
  if (job.first_code >= codes_in_byte) return false;
  const std::uint64_t target_bytes = result_bytes(job);
  Begin scales;
  Begin zeros;
  Begin groups;
  for (std::uint64_t number = job.first_elem; number < job.first_elem + job.elems; ++number) {
    std::uint64_t elem = number % job.run_elems;
    std::uint64_t from = (job.first_code + elem) / codes_in_byte;
    std::uint64_t to = elem * target_bytes;
    std::uint64_t rest = number / job.run_elems;
    for (std::uint32_t i = job.loop_count; i-- > 0;) {
      from += rest % job.loops[i].count * job.loops[i].source_stride_bytes;
      to += rest % job.loops[i].count * job.loops[i].target_stride_bytes;
      elem += rest % job.loops[i].count * job.loops[i].stride_elems;
      rest /= job.loops[i].count;
    }
    if (rest != 0) return false;
    for (std::uint64_t i = 0; i < std::max(1U, job.line_rounds); ++i) {
      const std::uint64_t source_here = from + i * job.line_source_stride_bytes;
      const std::uint64_t target_here = to + i * job.line_target_stride_bytes;
      if (reach(job.source + source_here, 1) != source + source_here ||
          reach(job.target + target_here, target_bytes) != target + target_here) {
        return false;
      }
    }
    const ScalePlace place = scale_place(job, elem);
    std::uint64_t scale = place.number;
    if (job.groups != 0) {
      const std::uint64_t at = place.group * sizeof(std::uint32_t);
      if (!groups.find(reach, job.groups, {at, at + sizeof(std::uint32_t)})) return false;
      std::uint32_t group = 0;
      std::memcpy(&group, reach(job.groups + at, sizeof(group)), sizeof(group));
      scale += group * job.group_grid_stride;
    }
    if (!scales.find(reach, job.scales, {scale * scale_bytes, (scale + 1) * scale_bytes})) return false;
    if (job.has_zeros != 0 && !zeros.find(reach, job.zeros, {scale, scale + 1})) return false;
  }
  job.source = number_of(source);
  job.target = number_of(target);
  job.scales = scales.on_host();
  job.zeros = zeros.on_host();
  job.groups = groups.on_host();
  return true;
}

Outcome run_dequantize(const KernelLaunch& launch, const Reach& reach, std::uint64_t& written_bytes) {
  const auto list = parameters_of<ListParameters>(launch);
  Outcome outcome;
  for (std::uint32_t block = 0; block < std::min(launch.blocks, list.count); ++block) {
    DequantizeJob job;
    if (!read_job(reach, list.jobs, block, job) || !translate(reach, job)) return kIllegal;
    DequantizePlan plan = {};
    for (std::uint32_t part = 0; part < kDequantizePlanParts; ++part) make_plan_part(job, part, plan);
    for (std::uint32_t code = 0; code < kPayloads; ++code) make_plan_payload(job, code, plan);
    for_each_thread(kBlockThreads, [&](ThreadPlace place) { dequantize_body(job, plan, place); });
    written_bytes += job.elems * std::max(1U, job.line_rounds) * result_bytes(job);
    if (job.first_elem == 0) outcome.written = reinterpret_cast<std::byte*>(job.target);
  }
  return outcome;
}

Outcome run_digest(const KernelLaunch& launch, const Reach& reach) {
  const auto list = parameters_of<ListParameters>(launch);
  for (std::uint32_t block = 0; block < std::min(launch.blocks, list.count); ++block) {
    DigestRange range;
    if (!read_job(reach, list.jobs, block, range)) return kIllegal;
    std::byte* const memory = reach(range.memory, range.size_bytes);
    std::byte* const account = reach(list.sums + range.account * sizeof(DigestSums), sizeof(DigestSums));
    if (memory == nullptr || account == nullptr) return kIllegal;
    range.memory = number_of(memory);
    DigestSums sums;
    for_each_thread(kBlockThreads, [&](ThreadPlace place) {
      const DigestSums mine = digest_body(range, reinterpret_cast<Address>(&device::kDigestTables), place);
      sums.lane0 += mine.lane0;
      sums.lane1 += mine.lane1;
    });
    auto* const lanes = reinterpret_cast<std::uint64_t*>(account);
    std::atomic_ref(lanes[0]).fetch_add(sums.lane0);
    std::atomic_ref(lanes[1]).fetch_add(sums.lane1);
  }
  return {};
}

Outcome run_fill(const KernelLaunch& launch, const Reach& reach, std::uint64_t& written_bytes) {
  auto job = parameters_of<FillJob>(launch);
  std::byte* const target = reach(job.target, job.elems * job.element_bytes);
  if (target == nullptr) return kIllegal;
  job.target = number_of(target);
  for_each_thread(launch.blocks * kBlockThreads, [&](ThreadPlace place) { fill_body(job, place); });
  written_bytes += job.elems * job.element_bytes;
  return {device::cuda::kSuccess, target};
}

Outcome run_sample(const KernelLaunch& launch, const Reach& reach, std::uint64_t& written_bytes) {
  auto job = parameters_of<SampleJob>(launch);
  const std::uint64_t size_bytes = job.elems * element_bytes(static_cast<DType>(job.dtype));
  std::byte* const target = reach(job.target, size_bytes);
  if (target == nullptr) return kIllegal;
  job.target = number_of(target);
  for_each_thread(launch.blocks * kBlockThreads, [&](ThreadPlace place) { sample_body(job, place); });
  written_bytes += size_bytes;
  return {device::cuda::kSuccess, target};
}

}  // namespace

bool is_kernel(std::string_view name) {
  return name == kMoveKernel || name == kDequantizeKernel || name == kDigestKernel || name == kFillKernel ||
         name == kSampleKernel;
}

void copy_parameters(void** parameters, KernelLaunch& launch) {
  std::byte* const to = launch.parameters.data();
  if (launch.kernel == kFillKernel) {
    std::memcpy(to, parameters[0], sizeof(FillJob));
  } else if (launch.kernel == kSampleKernel) {
    std::memcpy(to, parameters[0], sizeof(SampleJob));
  } else {
    ListParameters list = {};
    std::memcpy(&list.jobs, parameters[0], sizeof(list.jobs));
    std::memcpy(&list.count, parameters[1], sizeof(list.count));
    if (launch.kernel == kDigestKernel) std::memcpy(&list.sums, parameters[2], sizeof(list.sums));
    std::memcpy(to, &list, sizeof(list));
  }
}

Outcome run_kernel(const KernelLaunch& launch, const Reach& reach, std::uint64_t& written_bytes) {
  if (launch.kernel == kMoveKernel) return run_move(launch, reach, written_bytes);
  if (launch.kernel == kDequantizeKernel) return run_dequantize(launch, reach, written_bytes);
  if (launch.kernel == kDigestKernel) return run_digest(launch, reach);
  if (launch.kernel == kFillKernel) return run_fill(launch, reach, written_bytes);
  return run_sample(launch, reach, written_bytes);
}

}  // namespace lading::cuda_shim
