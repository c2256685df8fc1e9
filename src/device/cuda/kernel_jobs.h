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

inline constexpr std::uint32_t kMaxScaleDims = 4;

struct DequantizeLoop {
  std::uint64_t count;
  std::uint64_t source_stride_bytes;
  std::uint64_t target_stride_bytes;
  std::uint64_t stride_elems;  ///< in the tensor: the source may lack what stands between two rows
};

/// A dim of a quantized tensor, or several that are as good as one (device/quantized/scale_grid.h).
struct DequantizeDim {
  std::uint64_t extent;
  std::uint64_t block;        ///< elements along the dim that share a scale
  std::uint64_t grid_stride;  ///< from one block to the next, in scales
  std::uint64_t first;        ///< the index of the element at `source`; of dims[0] counted from its block
};

/// Elements of a strided move out of a quantized tensor, as of a MoveJob; each is multiplied by its scale and rounded
/// once. `cast.from` is an 8-bit float, if there is no `code`; `cast.to` a float of 16 bits or more.
struct DequantizeJob {
  std::uint64_t source;
  std::uint64_t target;
  std::uint64_t first_elem;
  std::uint64_t elems;  ///< below 2^32
  std::uint64_t run_elems;
  ElementCast cast;
  std::uint32_t loop_count;
  std::uint32_t dim_count;    ///< 0: all elements share a scale
  std::uint32_t product;      ///< the dtype that products are rounded to before they are cast; cast.to: once
  std::uint32_t scale_dtype;  ///< a number of lading::DType
  /// In row-major order of the blocks, from the first block of those rows of blocks in which `source` stands. What no
  /// element of the move needs may not be there.
  std::uint64_t scales;
  std::uint64_t zeros;  ///< zero points, a byte each, in the same order
  double tensor_scale;
  double tensor_reciprocal;   ///< of that, rounded
  std::uint32_t tensor_step;  ///< a number of TensorStep
  std::uint32_t code;         ///< kNoCode, or a number of CodeType
  std::uint32_t first_code;   ///< codes of the byte at `source` that stand in front of the run, and of each other one
  std::uint32_t zero;         ///< is subtracted from all codes
  std::uint32_t has_zeros;    ///< 0 or 1
  /// 0; or what counts as an element here are so many, in runs of 1: one, and those that follow at these strides. They
  /// share a scale (dequantize_lines.h).
  std::uint32_t line_rounds;
  std::uint64_t line_source_stride_bytes;
  std::uint64_t line_target_stride_bytes;
  DequantizeLoop loops[kMaxJobLoops];  ///< outermost first
  DequantizeDim dims[kMaxScaleDims];   ///< outermost first
  /// 0; or where a U32 for each code along one dim says which block of that dim it is in. `dims` are then those of the
  /// tensor, each `first` an index in it, and `scales` begins with the first scale of all.
  std::uint64_t groups;
  std::uint64_t group_grid_stride;             ///< from the scale of one group to that of the next
  std::uint64_t group_strides[kMaxScaleDims];  ///< in groups, from one index of the dim to the next; 0: in no group
};

inline constexpr std::uint32_t kNoCode = 0xFF;

// The kernels, by name. Grids are one-dimensional, blocks have kBlockThreads threads.
//   lading_move(const MoveJob* jobs, std::uint32_t count)                             one block per job
//   lading_dequantize(const DequantizeJob* jobs, std::uint32_t count)                 one block per job
//   lading_digest(const DigestRange* jobs, std::uint32_t count, std::uint64_t* sums)  one block per job
//   lading_fill(FillJob job)                                                          any grid
//   lading_sample(SampleJob job)                                                      any grid
inline constexpr const char* kMoveKernel = "lading_move";
inline constexpr const char* kDequantizeKernel = "lading_dequantize";
inline constexpr const char* kDigestKernel = "lading_digest";
inline constexpr const char* kFillKernel = "lading_fill";
inline constexpr const char* kSampleKernel = "lading_sample";

}  // namespace lading::device::cuda
