// How the threads of a block go over a DequantizeJob: from an element's number to its addresses and its scale.
//
// As in move_plan.h, a block makes one plan, and divisions are multiplications where everything is below 2^31. Where
// alignment and blocks of scales allow, a thread takes units of several elements that share a scale. No state.
#pragma once

#include <cstdint>

#include "device/cuda/move_plan.h"
#include "device/quantized/code_value.h"
#include "device/quantized/tensor_step.h"

namespace lading::device::cuda {

/// What a thread writes of a unit.
inline constexpr std::uint32_t kDequantizeUnitBytes = 16;

inline constexpr std::uint32_t kPayloads = 256;

struct DequantizeLevel {
  Divider count;
  std::uint64_t first;  ///< the index of the job's first element in this loop
  std::uint64_t source_stride_bytes;
  std::uint64_t target_stride_bytes;
  std::uint64_t stride_elems;
};

struct ScaleDimPlan {
  Divider extent;
  Divider block;
  std::uint64_t grid_stride;
  std::uint64_t first;
};

struct DequantizePlan {
  std::uint64_t source;
  std::uint64_t target;
  std::uint64_t code;  ///< of a run's first element, from the byte at `source`
  std::uint64_t elem;  ///< in the tensor, from the element at the job's source
  std::uint64_t scales;
  std::uint64_t zeros;
  double tensor_scale;
  double tensor_reciprocal;
  std::uint64_t units;
  std::uint64_t head;  ///< elements before the units; what is behind them is the rest
  std::uint64_t first_in_run;
  Divider run;
  std::uint32_t unit_elems;  ///< 1: there are no units
  std::uint32_t elems_between_units;
  std::uint32_t has_lines;  ///< 0 or 1: units are lines
  std::uint64_t line_source_stride_bytes;
  std::uint64_t line_target_stride_bytes;
  std::uint32_t target_bytes;  ///< of an element
  std::uint32_t loop_count;
  std::uint32_t dim_count;
  std::uint32_t is_small;  ///< 0 or 1: whether numbers fit in 32 bits
  std::uint32_t log2_codes_in_byte;
  std::uint32_t log2_scale_bytes;
  std::uint32_t scale_dtype;
  std::uint32_t tensor_step;
  std::uint32_t zeros_code;  ///< kNoCode: there are no zero points
  DequantizeLevel levels[kMaxJobLoops];
  ScaleDimPlan dims[kMaxScaleDims];
  std::uint64_t groups;
  std::uint64_t group_grid_stride;
  std::uint64_t group_strides[kMaxScaleDims];
  std::uint32_t values[kPayloads];  ///< of payloads, or of codes less their zero; in F32, which loses nothing
  std::uint64_t nans[kPayloads];    ///< results where payload or product are not a number
};

[[nodiscard]] LADING_BOTH inline std::uint32_t result_bytes(const DequantizeJob& job) {
  return element_bytes(static_cast<DType>(job.cast.to));
}

/// Whether all numbers that are divided or are divisors fit in 32 bits.
[[nodiscard]] LADING_BOTH inline bool is_small(const DequantizeJob& job) {
  std::uint64_t numbers = job.elems;
  std::uint64_t reach = job.loop_count == 0 ? job.first_elem + job.elems : job.run_elems;
  if (job.loop_count != 0) numbers |= job.run_elems;
  for (std::uint32_t i = 0; i < job.loop_count; ++i) {
    if (i != 0) numbers |= job.loops[i].count;
    reach += (job.loops[i].count - 1) * job.loops[i].stride_elems;
  }
  for (std::uint32_t d = 0; d < job.dim_count; ++d) {
    numbers |= job.dims[d].block | job.dims[d].first;
    if (d != 0) numbers |= job.dims[d].extent;
  }
  return (numbers | (reach + job.first_code)) < kSmallLimit;
}

/// Units are for results that DequantizeUnit is made for, for products that are one multiplication, and for scales that
/// are not looked up for each element.
[[nodiscard]] LADING_BOTH inline bool has_dequantize_units(const DequantizeJob& job) {
  const auto to = static_cast<DType>(job.cast.to);
  const auto step = static_cast<TensorStep>(job.tensor_step);
  if (job.product != job.cast.to || job.groups != 0) return false;
  if (step == TensorStep::kDividesProduct || step == TensorStep::kTimesScaleToOdd) return false;
  return to == DType::kBF16 || to == DType::kF16 || to == DType::kF32;
}

/// Of a job without loops: elements up to where the target is aligned for a unit.
[[nodiscard]] LADING_BOTH inline std::uint64_t head_of(const DequantizeJob& job) {
  const std::uint64_t target = job.target + job.first_elem * result_bytes(job);
  const std::uint64_t head = (kDequantizeUnitBytes - target % kDequantizeUnitBytes) % kDequantizeUnitBytes;
  return head / result_bytes(job) < job.elems ? head / result_bytes(job) : job.elems;
}

/// How many elements a thread takes at a time: those of 16 bytes of the result if no run, address or block gets in the
/// way. The source may have any alignment.
[[nodiscard]] LADING_BOTH inline std::uint32_t unit_elems_of(const DequantizeJob& job) {
  if (job.line_rounds != 0) return job.line_rounds;
  if (!has_dequantize_units(job) || !is_small(job)) return 1;
  const std::uint32_t unit_elems = kDequantizeUnitBytes / result_bytes(job);
  const bool is_dense = job.loop_count == 0;
  const std::uint64_t head = is_dense ? head_of(job) : 0;
  std::uint64_t target = job.target;
  if (is_dense) target += (job.first_elem + head) * result_bytes(job);
  std::uint64_t elems = is_dense ? 0 : job.run_elems | job.first_elem | job.elems;
  for (std::uint32_t i = 0; i < job.loop_count; ++i) {
    target |= job.loops[i].target_stride_bytes;
    if (job.dim_count != 0) elems |= job.loops[i].stride_elems;
  }
  if (job.dim_count != 0) {
    const DequantizeDim& last = job.dims[job.dim_count - 1];
    elems |= last.block | (is_dense ? last.first + job.first_elem + head : last.first);
    if (job.dim_count > 1) elems |= last.extent;
  }
  return target % kDequantizeUnitBytes == 0 && elems % unit_elems == 0 ? unit_elems : 1;
}

/// Each can be made by another thread: part 0 is where the job's first element stands, then follow the dividers of the
/// run, the loops and the dims.
inline constexpr std::uint32_t kDequantizePlanParts = 2 + kMaxJobLoops + kMaxScaleDims;

LADING_BOTH inline void make_plan_scales(const DequantizeJob& job, DequantizePlan& plan) {
  const std::uint32_t scale_bytes = element_bytes(static_cast<DType>(job.scale_dtype));
  plan.scales = job.scales;
  plan.zeros = job.zeros;
  plan.groups = job.groups;
  plan.group_grid_stride = job.group_grid_stride;
  plan.tensor_scale = job.tensor_scale;
  plan.tensor_reciprocal = job.tensor_reciprocal;
  plan.log2_codes_in_byte = job.code == kNoCode ? 0 : log2_codes_in_byte(static_cast<CodeType>(job.code));
  plan.log2_scale_bytes = scale_bytes == 8 ? 3 : scale_bytes / 2;
  plan.scale_dtype = job.scale_dtype;
  plan.tensor_step = job.tensor_step;
  plan.zeros_code = job.has_zeros != 0 ? job.code : kNoCode;
}

LADING_BOTH inline void make_plan_begin(const DequantizeJob& job, DequantizePlan& plan) {
  make_plan_scales(job, plan);
  plan.target_bytes = result_bytes(job);
  plan.loop_count = job.loop_count;
  plan.dim_count = job.dim_count;
  plan.is_small = is_small(job) ? 1 : 0;
  plan.unit_elems = unit_elems_of(job);
  plan.has_lines = job.line_rounds != 0 ? 1 : 0;
  plan.line_source_stride_bytes = job.line_source_stride_bytes;
  plan.line_target_stride_bytes = job.line_target_stride_bytes;
  plan.elems_between_units = plan.has_lines != 0 ? 1 : plan.unit_elems;
  plan.head = plan.unit_elems != 1 && plan.has_lines == 0 && job.loop_count == 0 ? head_of(job) : 0;
  plan.units = plan.unit_elems != 1 ? (job.elems - plan.head) / plan.elems_between_units : 0;
  plan.source = job.source;
  plan.code = job.first_code;
  if (job.loop_count == 0) {
    plan.code += job.first_elem;
    plan.target = job.target + job.first_elem * plan.target_bytes;
    plan.elem = job.first_elem;
    return;
  }
  plan.target = job.target;
  plan.elem = 0;
  std::uint64_t rest = job.first_elem / job.run_elems;
  plan.first_in_run = job.first_elem - rest * job.run_elems;
  for (std::uint32_t i = job.loop_count; i-- > 1;) {
    const std::uint64_t outer = rest / job.loops[i].count;
    plan.levels[i].first = rest - outer * job.loops[i].count;
    rest = outer;
  }
  plan.levels[0].first = rest;
}

LADING_BOTH inline void make_plan_part(const DequantizeJob& job, std::uint32_t part, DequantizePlan& plan) {
  if (part == 0) return make_plan_begin(job, plan);
  if (part == 1) {
    plan.run = make_divider(job.loop_count != 0 ? job.run_elems : 1);
  } else if (part - 2 < kMaxJobLoops) {
    if (part - 2 >= job.loop_count) return;
    const DequantizeLoop& loop = job.loops[part - 2];
    DequantizeLevel& level = plan.levels[part - 2];
    level.count = make_divider(loop.count);
    level.source_stride_bytes = loop.source_stride_bytes;
    level.target_stride_bytes = loop.target_stride_bytes;
    level.stride_elems = loop.stride_elems;
  } else if (part - 2 - kMaxJobLoops < job.dim_count) {
    const DequantizeDim& from = job.dims[part - 2 - kMaxJobLoops];
    ScaleDimPlan& dim = plan.dims[part - 2 - kMaxJobLoops];
    dim.extent = make_divider(from.extent);
    dim.block = make_divider(from.block);
    dim.grid_stride = from.grid_stride;
    dim.first = from.first;
    plan.group_strides[part - 2 - kMaxJobLoops] = job.group_strides[part - 2 - kMaxJobLoops];
  }
}

[[nodiscard]] LADING_BOTH inline Format format_of(std::uint32_t dtype) {
  Format found = {};
  for (const Format& format : kFormats) {
    if (format.dtype == static_cast<DType>(dtype)) found = format;
  }
  return found;
}

/// What there is to know of one of the payloads; also a part of the plan that any thread can make.
LADING_BOTH inline void make_plan_payload(const DequantizeJob& job, std::uint32_t code, DequantizePlan& plan) {
  constexpr Format kSingle = kFormats[format_index(DType::kF32)];
  constexpr Format kDouble = kFormats[format_index(DType::kF64)];
  constexpr std::uint64_t kNan = kDouble.infinity() | kDouble.quiet();
  const Format from = format_of(job.cast.from);
  const Format to = format_of(job.cast.to);
  if (job.code != kNoCode) {
    const auto type = static_cast<CodeType>(job.code);
    const std::uint32_t bits = code & ((1U << (8 >> log2_codes_in_byte(type))) - 1);
    plan.values[code] = __builtin_bit_cast(std::uint32_t, code_value(type, bits) - static_cast<float>(job.zero));
    plan.nans[code] = 0;  // there are none
    return;
  }
  plan.values[code] = cast_float<std::uint32_t>(from, kSingle, code);
  if ((plan.values[code] & (kSingle.sign() - 1)) > kSingle.infinity()) {
    plan.nans[code] = cast_float<std::uint64_t>(from, to, code);
  } else {
    // Infinity times 0: processors differ in the sign of that.
    plan.nans[code] = to.dtype == DType::kF64 ? kNan : cast_float<std::uint64_t>(kDouble, to, kNan);
  }
}

template <class Index>
struct ElementPlace {
  std::uint64_t source;
  Index code;  ///< from the byte at `source`
  std::uint64_t target;
  Index elem;  ///< in the tensor, from the element at the job's source
};

/// Of element `number` of the job.
template <class Index>
[[nodiscard]] LADING_BOTH inline ElementPlace<Index> place_of(const DequantizePlan& plan, Index number) {
  if (plan.loop_count == 0) {
    return {plan.source, static_cast<Index>(static_cast<Index>(plan.code) + number),
            plan.target + std::uint64_t{number} * plan.target_bytes,
            static_cast<Index>(static_cast<Index>(plan.elem) + number)};
  }
  const Index in_run = static_cast<Index>(plan.first_in_run) + number;
  Index rest = divide(in_run, plan.run);
  const auto column = static_cast<Index>(in_run - rest * static_cast<Index>(plan.run.divisor));
  ElementPlace<Index> place = {plan.source, static_cast<Index>(static_cast<Index>(plan.code) + column),
                               plan.target + std::uint64_t{column} * plan.target_bytes, column};
  for (std::uint32_t i = plan.loop_count; i-- > 0;) {
    const DequantizeLevel& level = plan.levels[i];
    const Index index = static_cast<Index>(level.first) + rest;
    rest = i != 0 ? divide(index, level.count) : 0;
    const auto at = static_cast<Index>(index - rest * static_cast<Index>(level.count.divisor));
    place.source += at * level.source_stride_bytes;
    place.target += at * level.target_stride_bytes;
    place.elem += at * static_cast<Index>(level.stride_elems);
  }
  return place;
}

/// Which scale an element has, from the plan's first one.
template <class Index>
[[nodiscard]] LADING_BOTH inline std::uint64_t scale_number(const DequantizePlan& plan, Index elem) {
  std::uint64_t number = 0;
  Index rest = elem;
  for (std::uint32_t d = plan.dim_count; d-- > 0;) {
    const ScaleDimPlan& dim = plan.dims[d];
    const Index index = static_cast<Index>(dim.first) + rest;
    rest = d != 0 ? divide(index, dim.extent) : 0;
    const auto at = static_cast<Index>(index - rest * static_cast<Index>(dim.extent.divisor));
    number += divide(at, dim.block) * dim.grid_stride;
  }
  return number;
}

}  // namespace lading::device::cuda
