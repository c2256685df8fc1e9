// Quantized elements times their scales, as the threads of a block do them together: the bits of
// device/quantized/dequantize.h.
//
// The product is one multiplication in F64, which is exact; the rounding is integer arithmetic (element_cast.h).
// Results of 16 and 32 bits are made in units of several elements with one scale where that is possible, everything
// else element by element. No state; source and target do not overlap.
#pragma once

#include <cstdint>

#include "device/cuda/dequantize_plan.h"

namespace lading::device::cuda {

/// A product that is a number. For a format of 16 bits the upper half of an F64 is enough, if its last bit remembers
/// whether there was a lower one: half the instructions.
[[nodiscard]] LADING_BOTH constexpr std::uint64_t round_product(const Format& to, std::uint64_t product) {
  // In the function, so that the compiler knows them there.
  constexpr Format kDouble = kFormats[format_index(DType::kF64)];
  constexpr Format kUpperHalf = {DType::kF64, 20, kDouble.exponent_bits, kDouble.bias, Family::kIeee};
  if (to.dtype == DType::kF64) return product;
  if (to.bits() == 16) {
    const auto upper = static_cast<std::uint32_t>(product >> 32);
    return cast_float<std::uint32_t>(kUpperHalf, to, static_cast<std::uint32_t>(product) != 0 ? upper | 1 : upper);
  }
  return cast_float<std::uint64_t>(kDouble, to, product);
}

/// A scale or a product as it stands in memory, but for NaN; exact.
[[nodiscard]] LADING_BOTH inline double widen(std::uint32_t dtype, std::uint64_t bits) {
  constexpr Format kSingle = kFormats[format_index(DType::kF32)];
  constexpr Format kHalf = kFormats[format_index(DType::kF16)];
  constexpr Format kQuarter = kFormats[format_index(DType::kF8E4M3)];
  const auto word = static_cast<std::uint32_t>(bits);
  std::uint32_t single = word;
  switch (static_cast<DType>(dtype)) {
    case DType::kF64: return __builtin_bit_cast(double, bits);
    case DType::kF8E8M0: return __builtin_bit_cast(double, (bits + (1023 - 127)) << 52);
    case DType::kBF16: single = word << 16; break;
    case DType::kF16: single = cast_float(kHalf, kSingle, word); break;
    case DType::kF8E4M3: single = cast_float(kQuarter, kSingle, word); break;
    default: break;
  }
  return static_cast<double>(__builtin_bit_cast(float, single));
}

/// What all elements of a block have in common.
struct BlockFactor {
  double factor;
  float zero;
};

/// Of the scale and the zero point as they stand in memory.
[[nodiscard]] LADING_BOTH inline BlockFactor block_factor(const DequantizePlan& plan, std::uint64_t scale,
                                                          std::uint32_t zero) {
  double factor = widen(plan.scale_dtype, scale);
  const auto step = static_cast<TensorStep>(plan.tensor_step);
  if (step == TensorStep::kDividesScale) factor = quotient(factor, plan.tensor_scale, plan.tensor_reciprocal);
  if (step == TensorStep::kTimesScale || step == TensorStep::kTimesScaleToOdd) factor = factor * plan.tensor_scale;
  return {factor, plan.zeros_code == kNoCode ? 0.0F : code_value(static_cast<CodeType>(plan.zeros_code), zero)};
}

/// Whether an F64 is a NaN.
[[nodiscard]] LADING_BOTH constexpr bool is_nan(std::uint64_t number) {
  constexpr Format kDouble = kFormats[format_index(DType::kF64)];
  return (number & (kDouble.sign() - 1)) > kDouble.infinity();
}

/// One element, whose product is one multiplication. Nothing before the rounding is inexact, and neither is ever
/// subnormal in F32 or F64.
[[nodiscard]] LADING_BOTH inline std::uint64_t dequantize_element(const DequantizePlan& plan, const Format& to,
                                                                  std::uint32_t code, BlockFactor block) {
  const float value = __builtin_bit_cast(float, plan.values[code]) - block.zero;
  const auto product = __builtin_bit_cast(std::uint64_t, static_cast<double>(value) * block.factor);
  if (is_nan(product)) return plan.nans[code];
  return round_product(to, product);
}

/// With any step, in F64.
[[nodiscard]] LADING_BOTH inline std::uint64_t product_of(const DequantizePlan& plan, std::uint32_t code,
                                                          BlockFactor block) {
  const auto value = static_cast<double>(__builtin_bit_cast(float, plan.values[code]) - block.zero);
  const auto step = static_cast<TensorStep>(plan.tensor_step);
  double product = value * block.factor;
  if (step == TensorStep::kTimesScaleToOdd) product = product_to_odd(value, block.factor);
  if (step == TensorStep::kDividesProduct) product = quotient(product, plan.tensor_scale, plan.tensor_reciprocal);
  return __builtin_bit_cast(std::uint64_t, product);
}

/// A product that is a number, to a dtype that is known only when running.
[[nodiscard]] LADING_BOTH inline std::uint64_t round_to(std::uint32_t dtype, std::uint64_t product) {
  constexpr Format kHalf = kFormats[format_index(DType::kF16)];
  constexpr Format kUpper = kFormats[format_index(DType::kBF16)];
  constexpr Format kSingle = kFormats[format_index(DType::kF32)];
  switch (static_cast<DType>(dtype)) {
    case DType::kBF16: return round_product(kUpper, product);
    case DType::kF16: return round_product(kHalf, product);
    case DType::kF32: return round_product(kSingle, product);
    default: return product;
  }
}

/// The same to the dtype of products, and from that to the result's.
[[nodiscard]] LADING_BOTH inline std::uint64_t round_in_steps(const DequantizeJob& job, std::uint64_t product) {
  std::uint64_t rounded = 0;
  std::uint32_t dtype = job.product;
#pragma GCC unroll 1
  for (int step = 0; step < 2; ++step) {
    rounded = round_to(dtype, product);
    if (dtype == job.cast.to) break;
    product = __builtin_bit_cast(std::uint64_t, widen(dtype, rounded));
    dtype = job.cast.to;
  }
  return rounded;
}

/// Of packed codes, one in each byte.
[[nodiscard]] LADING_BOTH constexpr std::uint64_t spread_codes(std::uint64_t word, std::uint32_t log2_codes_in_byte) {
  if (log2_codes_in_byte == 1) {
    word = (word | word << 16) & 0x0000FFFF0000FFFF;
    word = (word | word << 8) & 0x00FF00FF00FF00FF;
    word = (word | word << 4) & 0x0F0F0F0F0F0F0F0F;
  } else if (log2_codes_in_byte == 2) {
    word = (word | word << 24) & 0x000000FF000000FF;
    word = (word | word << 12) & 0x000F000F000F000F;
    word = (word | word << 6) & 0x0303030303030303;
  }
  return word;
}

/// Elements that share a scale, of 16 bytes of the result.
template <DType kTo>
struct DequantizeUnit {
  static constexpr std::uint32_t kElems = kDequantizeUnitBytes / element_bytes(kTo);
  static constexpr std::uint32_t kBatch = 2;  ///< units that a thread reads before it writes them
  using Read = Word<kElems>;

  /// The codes, as they stand in memory, the first one in the lowest bits.
  [[nodiscard]] LADING_BOTH static Read read(const DequantizePlan& plan, std::uint64_t source, std::uint32_t code) {
    if (plan.has_lines != 0) return read_line(plan, source + (code >> plan.log2_codes_in_byte), code);
    if (plan.log2_codes_in_byte != 0) return read_packed(plan.log2_codes_in_byte, source, code);
    return read_bytes(source + code, 1);
  }

  [[nodiscard]] LADING_BOTH static Read read_bytes(std::uint64_t address, std::uint64_t stride_bytes) {
    if (stride_bytes == 1 && address % kElems == 0) return load<Read>(address);
    Read word = 0;
#pragma GCC unroll 8
    for (std::uint32_t i = 0; i < kElems; ++i) word |= Read{load<std::uint8_t>(address + i * stride_bytes)} << (8 * i);
    return word;
  }

  /// One code of each byte, already by itself.
  [[nodiscard]] LADING_BOTH static Read read_line(const DequantizePlan& plan, std::uint64_t address,
                                                  std::uint64_t code) {
    constexpr auto kOnes = static_cast<Read>(0x0101010101010101);
    const std::uint32_t code_bits = 8U >> plan.log2_codes_in_byte;
    const auto in_front = static_cast<std::uint32_t>(code) & ((1U << plan.log2_codes_in_byte) - 1);
    const Read word = read_bytes(address, plan.line_source_stride_bytes);
    return (word >> (in_front * code_bits)) & static_cast<Read>(kOnes * ((1U << code_bits) - 1));
  }

  [[nodiscard]] LADING_BOTH static Read read_packed(std::uint32_t log2_codes_in_byte, std::uint64_t source,
                                                    std::uint32_t code) {
    const std::uint64_t address = source + (code >> log2_codes_in_byte);
    const std::uint32_t in_front = code & ((1U << log2_codes_in_byte) - 1);
    if (log2_codes_in_byte == 1 && in_front == 0 && address % (kElems / 2) == 0) {
      return load<Word<kElems / 2>>(address);
    }
    const std::uint32_t size_bytes = (kElems >> log2_codes_in_byte) + (in_front != 0 ? 1 : 0);
    std::uint64_t word = 0;
#pragma GCC unroll 1
    for (std::uint32_t i = 0; i < size_bytes; ++i) word |= std::uint64_t{load<std::uint8_t>(address + i)} << (8 * i);
    word >>= in_front * (8U >> log2_codes_in_byte);
    return static_cast<Read>(word & ((std::uint64_t{1} << (8 * kElems >> log2_codes_in_byte)) - 1));
  }

  LADING_BOTH static void write(const DequantizePlan& plan, std::uint64_t target, Read read, BlockFactor block) {
    constexpr Format to = kFormats[format_index(kTo)];
    constexpr std::uint32_t kInWord = 4 / element_bytes(kTo);
    const auto codes = plan.has_lines != 0 ? read : static_cast<Read>(spread_codes(read, plan.log2_codes_in_byte));
    Words4 made = {};
#pragma GCC unroll 8
    for (std::uint32_t i = 0; i < kElems; ++i) {
      const auto code = static_cast<std::uint32_t>(codes >> (8 * i)) & 0xFF;
      const auto result = static_cast<std::uint32_t>(dequantize_element(plan, to, code, block));
      made[i / kInWord] |= result << (i % kInWord * 8 * element_bytes(kTo));
    }
    if (plan.has_lines != 0) return write_line(plan, target, made);
    store(target, made);
  }

  LADING_BOTH static void write_line(const DequantizePlan& plan, std::uint64_t target, Words4 made) {
    constexpr std::uint32_t kBytes = element_bytes(kTo);
    constexpr std::uint32_t kInWord = 4 / kBytes;
    const std::uint64_t stride_bytes = plan.line_target_stride_bytes;
    if (stride_bytes == kBytes && target % kDequantizeUnitBytes == 0) return store(target, made);
#pragma GCC unroll 8
    for (std::uint32_t i = 0; i < kElems; ++i) {
      const std::uint32_t result = made[i / kInWord] >> (i % kInWord * 8 * kBytes);
      store_element(target + i * stride_bytes, kBytes, result);
    }
  }
};

/// From where to where, and by which scale.
struct DequantizeUse {
  std::uint64_t source;
  std::uint64_t code;  ///< from the byte at `source`
  std::uint64_t target;
  std::uint64_t scale;  ///< as it stands in memory
  std::uint32_t zero;
};

template <class Index>
[[nodiscard]] LADING_BOTH inline DequantizeUse use_of_scale(const DequantizePlan& plan,
                                                            const ElementPlace<Index>& place, std::uint64_t scale) {
  const std::uint64_t address = plan.scales + (scale << plan.log2_scale_bytes);
  return {place.source, place.code, place.target, load_element(address, 1U << plan.log2_scale_bytes),
          plan.zeros_code == kNoCode ? 0U : load<std::uint8_t>(plan.zeros + scale)};
}

template <class Index>
[[nodiscard]] LADING_BOTH inline DequantizeUse use_of(const DequantizePlan& plan, Index number) {
  const ElementPlace<Index> place = place_of(plan, number);
  return use_of_scale(plan, place, scale_number(plan, place.elem));
}

/// Which scale an element has where groups say which block of one dim it is in.
[[nodiscard]] LADING_BOTH inline std::uint64_t scale_number_by_groups(const DequantizePlan& plan, std::uint64_t elem) {
  std::uint64_t number = 0;
  std::uint64_t code = 0;  // along the groups
  std::uint64_t rest = elem;
  for (std::uint32_t d = plan.dim_count; d-- > 0;) {
    const ScaleDimPlan& dim = plan.dims[d];
    const std::uint64_t index = dim.first + rest;
    rest = d != 0 ? divide(index, dim.extent) : 0;
    const std::uint64_t at = index - rest * dim.extent.divisor;
    if (plan.group_strides[d] != 0) {
      code += at * plan.group_strides[d];
    } else {
      number += divide(at, dim.block) * dim.grid_stride;
    }
  }
  return number + load<std::uint32_t>(plan.groups + code * sizeof(std::uint32_t)) * plan.group_grid_stride;
}

[[nodiscard]] LADING_BOTH inline DequantizeUse use_by_groups(const DequantizePlan& plan, std::uint64_t number) {
  const ElementPlace<std::uint64_t> place = place_of(plan, number);
  return use_of_scale(plan, place, scale_number_by_groups(plan, place.elem));
}

template <class Unit>
LADING_BOTH inline void dequantize_units(const DequantizePlan& plan, ThreadPlace place) {
  const auto units = static_cast<std::uint32_t>(plan.units);
  const auto head = static_cast<std::uint32_t>(plan.head);
#pragma GCC unroll 1
  for (std::uint32_t begin = place.thread; begin < units; begin += Unit::kBatch * place.threads) {
    typename Unit::Read read[Unit::kBatch] = {};
    std::uint64_t scales[Unit::kBatch] = {};
    std::uint32_t zeros[Unit::kBatch] = {};
    std::uint64_t targets[Unit::kBatch] = {};
#pragma GCC unroll 4
    for (std::uint32_t i = 0; i < Unit::kBatch; ++i) {
      const std::uint32_t at = begin + i * place.threads;
      if (at >= units) continue;
      const DequantizeUse use = use_of(plan, head + at * plan.elems_between_units);
      read[i] = Unit::read(plan, use.source, static_cast<std::uint32_t>(use.code));
      scales[i] = use.scale;
      zeros[i] = use.zero;
      targets[i] = use.target;
    }
    // Not unrolled, since the code is long; and no arrays with an index that is known only when running.
    static_assert(Unit::kBatch == 2);
#pragma GCC unroll 1
    for (std::uint32_t i = 0; i < Unit::kBatch; ++i) {
      if (begin + i * place.threads >= units) break;
      const BlockFactor block = block_factor(plan, i == 0 ? scales[0] : scales[1], i == 0 ? zeros[0] : zeros[1]);
      Unit::write(plan, i == 0 ? targets[0] : targets[1], i == 0 ? read[0] : read[1], block);
    }
  }
}

/// What no unit has.
LADING_BOTH inline void dequantize_singly(const DequantizeJob& job, const DequantizePlan& plan, ThreadPlace place) {
  const std::uint64_t in_units = plan.units * plan.elems_between_units;
  if (in_units == job.elems) return;
  const std::uint32_t code_bits = 8U >> plan.log2_codes_in_byte;
#pragma GCC unroll 1
  for (std::uint64_t i = place.thread; i < job.elems - in_units; i += place.threads) {
    const std::uint64_t number = i < plan.head ? i : i + in_units;
    const DequantizeUse use = plan.groups != 0     ? use_by_groups(plan, number)
                              : plan.is_small != 0 ? use_of(plan, static_cast<std::uint32_t>(number))
                                                   : use_of(plan, number);
    const std::uint32_t byte = load<std::uint8_t>(use.source + (use.code >> plan.log2_codes_in_byte));
    const auto in_front = static_cast<std::uint32_t>(use.code) & ((1U << plan.log2_codes_in_byte) - 1);
    const std::uint32_t code = byte >> (in_front * code_bits) & ((1U << code_bits) - 1);
    const std::uint64_t product = product_of(plan, code, block_factor(plan, use.scale, use.zero));
    const std::uint64_t result = is_nan(product) ? plan.nans[code] : round_in_steps(job, product);
    store_element(use.target, plan.target_bytes, result);
  }
}

/// `plan` is complete.
LADING_BOTH inline void dequantize_body(const DequantizeJob& job, const DequantizePlan& plan, ThreadPlace place) {
  if (plan.unit_elems != 1) {
    switch (static_cast<DType>(job.cast.to)) {
      case DType::kBF16: dequantize_units<DequantizeUnit<DType::kBF16>>(plan, place); break;
      case DType::kF16: dequantize_units<DequantizeUnit<DType::kF16>>(plan, place); break;
      default: dequantize_units<DequantizeUnit<DType::kF32>>(plan, place); break;
    }
  }
  dequantize_singly(job, plan, place);
}

}  // namespace lading::device::cuda
