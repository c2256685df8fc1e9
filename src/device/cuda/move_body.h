// Strided moves with casts, as the threads of a block do them together.
//
// Consecutive threads take consecutive units (move_plan.h). A copy takes the widest units that alignment and runs
// allow, 16 bytes at most; a cast of a common pair four elements where that is aligned; everything else goes element by
// element. Units are read in batches before any is written, so that many loads are under way. No state; source and
// target do not overlap.
#pragma once

#include <cstdint>

#include "device/cuda/move_plan.h"

namespace lading::device::cuda {

/// Elements of one unit, for the pairs that CastUnit is made for.
inline constexpr std::uint32_t kCastUnitElems = 4;

template <unsigned kBytes>
struct CopyUnit {
  static constexpr std::uint32_t kBatch = 4;  ///< units that a thread reads before it writes them
  using Read = Word<kBytes>;
  [[nodiscard]] LADING_BOTH Read read(std::uint64_t source) const { return load<Read>(source); }
  LADING_BOTH void write(std::uint64_t target, Read unit) const { store(target, unit); }
};

/// Four codes in a word.
template <class W>
struct FourCodes {
  static constexpr unsigned kBits = 2 * sizeof(W);
  [[nodiscard]] LADING_BOTH static std::uint32_t get(W word, unsigned i) {
    return static_cast<std::uint32_t>(word >> (kBits * i)) & ((1U << kBits) - 1);
  }
  LADING_BOTH static void set(W& word, unsigned i, std::uint32_t code) {
    word |= static_cast<W>(W{code} << (kBits * i));
  }
};

template <>
struct FourCodes<Words4> {
  [[nodiscard]] LADING_BOTH static std::uint32_t get(Words4 word, unsigned i) { return word[i]; }
  LADING_BOTH static void set(Words4& word, unsigned i, std::uint32_t code) { word[i] = code; }
};

/// Four elements, both formats known to the compiler and of at most 32 bits.
template <DType kFrom, DType kTo>
struct CastUnit {
  static constexpr std::uint32_t kBatch = 2;
  using Read = Word<kCastUnitElems * element_bytes(kFrom)>;
  using Write = Word<kCastUnitElems * element_bytes(kTo)>;
  [[nodiscard]] LADING_BOTH Read read(std::uint64_t source) const { return load<Read>(source); }
  LADING_BOTH void write(std::uint64_t target, Read unit) const {
    constexpr Format from = kFormats[format_index(kFrom)];
    constexpr Format to = kFormats[format_index(kTo)];
    Write made = {};
#pragma GCC unroll 4
    for (unsigned i = 0; i < kCastUnitElems; ++i) {
      FourCodes<Write>::set(made, i, cast_float(from, to, FourCodes<Read>::get(unit, i)));
    }
    store(target, made);
  }
};

template <class Unit>
LADING_BOTH inline void move_units(const MovePlan& plan, const Unit& unit, ThreadPlace place) {
  const auto units = static_cast<std::uint32_t>(plan.units);
  const std::uint32_t threads = place.threads;
#pragma GCC unroll 1
  for (std::uint32_t begin = place.thread; begin < units; begin += Unit::kBatch * threads) {
    typename Unit::Read read[Unit::kBatch] = {};
    std::uint64_t targets[Unit::kBatch] = {};
#pragma GCC unroll 4
    for (std::uint32_t i = 0; i < Unit::kBatch; ++i) {
      const std::uint32_t at = begin + i * threads;
      if (at >= units) continue;
      const UnitAddress address = address_of(plan, at);
      read[i] = unit.read(address.source);
      targets[i] = address.target;
    }
#pragma GCC unroll 4
    for (std::uint32_t i = 0; i < Unit::kBatch; ++i) {
      if (begin + i * threads < units) unit.write(targets[i], read[i]);
    }
  }
}

[[nodiscard]] constexpr std::uint64_t lowest_bit(std::uint64_t number) { return number & (~number + 1); }

/// All of these are multiples of the result, which is `most` at most.
[[nodiscard]] LADING_BOTH inline std::uint32_t common_bytes(const MoveJob& job, std::uint64_t element,
                                                            std::uint64_t most) {
  std::uint64_t all = most | job.source | job.target;
  all |= (job.run_elems | job.first_elem | job.elems) * element;
  for (std::uint32_t i = 0; i < job.loop_count; ++i) {
    all |= job.loops[i].source_stride_bytes | job.loops[i].target_stride_bytes;
  }
  return static_cast<std::uint32_t>(lowest_bit(all));
}

[[nodiscard]] LADING_BOTH inline bool is_common_pair(ElementCast cast) {
  const auto is = [cast](DType from, DType to) {
    return cast.from == static_cast<std::uint32_t>(from) && cast.to == static_cast<std::uint32_t>(to);
  };
  return is(DType::kF32, DType::kBF16) || is(DType::kBF16, DType::kF32) || is(DType::kF32, DType::kF16) ||
         is(DType::kF16, DType::kF32) || is(DType::kF16, DType::kBF16) || is(DType::kBF16, DType::kF16) ||
         is(DType::kF8E4M3, DType::kBF16) || is(DType::kF8E4M3, DType::kF32);
}

/// Whether four elements are a unit everywhere: no run, stride or address gets in the way.
[[nodiscard]] LADING_BOTH inline bool has_cast_units(const MoveJob& job, UnitSize unit) {
  const std::uint64_t elems = job.first_elem | job.elems | job.run_elems;
  std::uint64_t source = job.source;
  std::uint64_t target = job.target;
  for (std::uint32_t i = 0; i < job.loop_count; ++i) {
    source |= job.loops[i].source_stride_bytes;
    target |= job.loops[i].target_stride_bytes;
  }
  return is_common_pair(job.cast) && elems % kCastUnitElems == 0 && source % unit.source_bytes == 0 &&
         target % unit.target_bytes == 0;
}

/// The same for a job without loops, from the first element that is aligned in the target.
[[nodiscard]] LADING_BOTH inline bool has_dense_cast_units(const MoveJob& job, UnitSize element, UnitSize unit) {
  const std::uint64_t source = job.source + job.first_elem * element.source_bytes;
  const std::uint64_t target = job.target + job.first_elem * element.target_bytes;
  const std::uint64_t head = (unit.target_bytes - target % unit.target_bytes) % unit.target_bytes;
  return is_common_pair(job.cast) && target % element.target_bytes == 0 &&
         (source + head / element.target_bytes * element.source_bytes) % unit.source_bytes == 0;
}

/// Of a job that only carries bytes. Where numbers are large, single elements or bytes go: it is enough that it works.
[[nodiscard]] LADING_BOTH inline UnitSize copy_unit_of(const MoveJob& job, UnitSize element) {
  const bool is_dense = job.loop_count == 0;
  const std::uint32_t wide = is_dense ? static_cast<std::uint32_t>(lowest_bit(16 | (job.source - job.target)))
                                      : common_bytes(job, element.source_bytes, 16);
  if (is_small(job, {wide, wide})) return {wide, wide};
  const std::uint32_t bytes = is_dense ? 1 : common_bytes(job, element.source_bytes, 8);
  return {bytes, bytes};
}

/// The units of a job.
[[nodiscard]] LADING_BOTH inline UnitSize unit_of(const MoveJob& job) {
  const UnitSize element = element_size(job.cast);
  if (job.cast.from == job.cast.to) return copy_unit_of(job, element);
  const UnitSize wide = {kCastUnitElems * element.source_bytes, kCastUnitElems * element.target_bytes};
  const bool is_aligned = job.loop_count == 0 ? has_dense_cast_units(job, element, wide) : has_cast_units(job, wide);
  return is_aligned && is_small(job, wide) ? wide : element;
}

LADING_BOTH inline void copy_units(const MovePlan& plan, ThreadPlace place) {
  switch (plan.unit.source_bytes) {
    case 1: return move_units(plan, CopyUnit<1>(), place);
    case 2: return move_units(plan, CopyUnit<2>(), place);
    case 4: return move_units(plan, CopyUnit<4>(), place);
    case 8: return move_units(plan, CopyUnit<8>(), place);
    default: return move_units(plan, CopyUnit<16>(), place);
  }
}

[[nodiscard]] constexpr std::uint32_t pair_number(DType from, DType to) {
  return static_cast<std::uint32_t>(from) << 8 | static_cast<std::uint32_t>(to);
}

/// Units of four elements of a common pair.
LADING_BOTH inline void cast_units(const MovePlan& plan, ElementCast cast, ThreadPlace place) {
  using enum DType;
  switch (cast.from << 8 | cast.to) {
    case pair_number(kF32, kBF16): return move_units(plan, CastUnit<kF32, kBF16>(), place);
    case pair_number(kBF16, kF32): return move_units(plan, CastUnit<kBF16, kF32>(), place);
    case pair_number(kF32, kF16): return move_units(plan, CastUnit<kF32, kF16>(), place);
    case pair_number(kF16, kF32): return move_units(plan, CastUnit<kF16, kF32>(), place);
    case pair_number(kF16, kBF16): return move_units(plan, CastUnit<kF16, kBF16>(), place);
    case pair_number(kBF16, kF16): return move_units(plan, CastUnit<kBF16, kF16>(), place);
    case pair_number(kF8E4M3, kBF16): return move_units(plan, CastUnit<kF8E4M3, kBF16>(), place);
    case pair_number(kF8E4M3, kF32): return move_units(plan, CastUnit<kF8E4M3, kF32>(), place);
    default: break;
  }
}

/// Whether wide units do all of a job that they can do.
enum class WideUnits : std::uint8_t { kUsed, kNotUsed };

/// What has no wide units: elements, one by one, at any address.
struct SingleUnits {
  std::uint64_t count;
  DenseSplit split;   ///< of a job without loops
  std::uint64_t gap;  ///< items between its head and its tail that wide units have done
  UnitSize unit;
};

[[nodiscard]] LADING_BOTH inline SingleUnits single_units(const MoveJob& job, const MovePlan& plan, WideUnits wide) {
  SingleUnits single = {};
  single.unit = plan.unit;
  if (job.loop_count != 0) {
    single.count = wide == WideUnits::kUsed ? 0 : plan.units;
    return single;
  }
  single.split = split_dense(job, plan.unit);
  single.unit = single.split.item;
  single.count = single.split.head + single.split.tail;
  if (wide == WideUnits::kUsed) {
    single.gap = single.split.units * (plan.unit.target_bytes / single.unit.target_bytes);
  } else {
    single.count += single.split.units;  // which are single items
  }
  return single;
}

template <CastKind kKind>
LADING_BOTH inline void move_singly(const MovePlan& plan, const SingleUnits& single, const CastRecipe& recipe,
                                    ThreadPlace place) {
  const bool is_32_bit = plan.is_small != 0;
#pragma GCC unroll 1
  for (std::uint64_t i = place.thread; i < single.count; i += place.threads) {
    UnitAddress address;
    if (plan.loop_count == 0) {
      const std::uint64_t item = i < single.split.head ? i : i + single.gap;
      address = {single.split.source + item * single.unit.source_bytes,
                 single.split.target + item * single.unit.target_bytes};
    } else {
      address = is_32_bit ? address_of(plan, static_cast<std::uint32_t>(i)) : address_of(plan, i);
    }
    const std::uint64_t code = load_element(address.source, single.unit.source_bytes);
    store_element(address.target, single.unit.target_bytes, cast_element<kKind>(recipe, code));
  }
}

/// `plan` is complete, with the units of unit_of().
LADING_BOTH inline void move_body(const MoveJob& job, const MovePlan& plan, ThreadPlace place) {
  const bool is_copy = job.cast.from == job.cast.to;
  const bool has_cast_units = !is_copy && plan.unit.source_bytes != element_size(job.cast).source_bytes;
  const bool has_copy_units = is_copy && plan.is_small != 0;
  if (has_copy_units) copy_units(plan, place);
  if (has_cast_units) cast_units(plan, job.cast, place);

  const WideUnits wide = has_copy_units || has_cast_units ? WideUnits::kUsed : WideUnits::kNotUsed;
  const SingleUnits single = single_units(job, plan, wide);
  if (single.count == 0) return;
  const CastRecipe recipe = cast_recipe(static_cast<DType>(job.cast.from), static_cast<DType>(job.cast.to));
  switch (recipe.kind) {
    case CastKind::kCarry: return move_singly<CastKind::kCarry>(plan, single, recipe, place);
    case CastKind::kExtendSign: return move_singly<CastKind::kExtendSign>(plan, single, recipe, place);
    case CastKind::kFloat: return move_singly<CastKind::kFloat>(plan, single, recipe, place);
    case CastKind::kFloat64: return move_singly<CastKind::kFloat64>(plan, single, recipe, place);
  }
}

}  // namespace lading::device::cuda
