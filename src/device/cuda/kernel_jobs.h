// What kernels are told: plain structs that host and GPU read alike.
//
// Lists of jobs stand in pinned host memory, where kernels read them over the bus; one block of threads does one job.
// A job is small on purpose (kJobBytes): a large move or digest is many jobs, so that one alone fills a GPU.
#pragma once

#include <cstdint>

#include "device/sample_parameters.h"

namespace lading::device::cuda {

/// Threads of a block, in every kernel.
inline constexpr std::uint32_t kBlockThreads = 256;
/// About how much one block moves or digests.
inline constexpr std::uint64_t kJobBytes = 128 << 10;

inline constexpr std::uint32_t kMaxJobLoops = 6;

struct JobLoop {
  std::uint64_t count;
  std::uint64_t source_stride_bytes;
  std::uint64_t target_stride_bytes;
};

/// How to turn an element into another: dtypes as numbers of lading::DType. Equal ones, and all whose bytes are only
/// carried, have from == to; packed dtypes are moved as U8.
struct ElementCast {
  std::uint32_t from;
  std::uint32_t to;
};

/// Elements [first_elem, first_elem + elems) of a strided move, counted row-major over the loops and the run. Any
/// alignment on both sides.
struct MoveJob {
  std::uint64_t source;  ///< addresses in the GPU's view
  std::uint64_t target;
  std::uint64_t first_elem;
  std::uint64_t elems;      ///< below 2^32
  std::uint64_t run_elems;  ///< of the innermost run: elements that lie side by side in source and target
  ElementCast cast;
  std::uint32_t loop_count;
  std::uint32_t padding;
  JobLoop loops[kMaxJobLoops];  ///< outermost first
};

/// Device memory that stands at [global_begin_bytes, …) of its tensor; its digest is added to sums[2 * account + lane].
struct DigestRange {
  std::uint64_t memory;
  std::uint64_t size_bytes;
  std::uint64_t global_begin_bytes;
  std::uint64_t account;
};

/// A constant of 1, 2, 4 or 8 bytes, in `bits`.
struct FillJob {
  std::uint64_t target;
  std::uint64_t elems;
  std::uint64_t bits;
  std::uint32_t element_bytes;
  std::uint32_t padding;
};

/// Elements [first_elem, first_elem + elems) of an initial value, made in F32 and cast once.
struct SampleJob {
  std::uint64_t target;
  std::uint64_t first_elem;
  std::uint64_t elems;
  std::uint64_t key;
  std::uint32_t dtype;  ///< a number of lading::DType
  std::uint32_t padding;
  SampleParameters parameters;
};

// The kernels, by name. Grids are one-dimensional, blocks have kBlockThreads threads.
//   lading_move(const MoveJob* jobs, std::uint32_t count)                             one block per job
//   lading_digest(const DigestRange* jobs, std::uint32_t count, std::uint64_t* sums)  one block per job
//   lading_fill(FillJob job)                                                          any grid
//   lading_sample(SampleJob job)                                                      any grid
inline constexpr const char* kMoveKernel = "lading_move";
inline constexpr const char* kDigestKernel = "lading_digest";
inline constexpr const char* kFillKernel = "lading_fill";
inline constexpr const char* kSampleKernel = "lading_sample";

}  // namespace lading::device::cuda
