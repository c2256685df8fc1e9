// How the threads of a block go over a MoveJob: in units, and from a unit's number to its addresses.
//
// A unit is what one thread moves at a time: some bytes of a copy, some elements of a cast. A block makes one plan,
// each warp a part of it. Where everything is below 2^31, which is nearly always, divisions are multiplications. No
// state.
#pragma once

#include <cstdint>

#include "device/cuda/element_cast.h"
#include "device/cuda/gpu_memory.h"
#include "device/cuda/kernel_jobs.h"

namespace lading::device::cuda {

/// Divides by a number that is used often.
struct Divider {
  std::uint64_t divisor;
  std::uint64_t magic;  ///< 2^64 / divisor, rounded up; for divisors from 2 to 2^32 - 1
};

[[nodiscard]] constexpr Divider make_divider(std::uint64_t divisor) {
  return {divisor, ~std::uint64_t{0} / divisor + 1};
}

[[nodiscard]] constexpr std::uint64_t divide(std::uint64_t number, const Divider& by) { return number / by.divisor; }

/// Exact: the error of `magic`, below 1, times the number is below 2^32, and 2^64 / divisor is above that.
[[nodiscard]] constexpr std::uint32_t divide(std::uint32_t number, const Divider& by) {
  if (by.divisor == 1) return number;
  const std::uint64_t low = (by.magic & 0xFFFFFFFF) * number;
  return static_cast<std::uint32_t>(((by.magic >> 32) * number + (low >> 32)) >> 32);
}

/// Of a unit or an element.
struct UnitSize {
  std::uint32_t source_bytes;
  std::uint32_t target_bytes;
};

struct MoveLevel {
  Divider count;
  std::uint64_t first;  ///< the index of unit 0 in this loop
  std::uint64_t source_stride_bytes;
  std::uint64_t target_stride_bytes;
};

struct MovePlan {
  std::uint64_t source;
  std::uint64_t target;
  std::uint64_t units;
  Divider run;                 ///< units of a run
  std::uint64_t first_in_run;  ///< where unit 0 stands in its run
  UnitSize unit;
  std::uint32_t loop_count;
  std::uint32_t is_small;  ///< 0 or 1: whether numbers fit in 32 bits
  MoveLevel levels[kMaxJobLoops];
};

[[nodiscard]] LADING_BOTH inline UnitSize element_size(ElementCast cast) {
  return {element_bytes(static_cast<DType>(cast.from)), element_bytes(static_cast<DType>(cast.to))};
}

/// A job without loops: single items, units from where the target is aligned, single items. Items are elements, or
/// bytes where elements are only carried.
struct DenseSplit {
  std::uint64_t source;
  std::uint64_t target;
  UnitSize item;
  std::uint64_t head;  ///< items before the units
  std::uint64_t units;
  std::uint64_t tail;  ///< items behind them
};

[[nodiscard]] LADING_BOTH inline DenseSplit split_dense(const MoveJob& job, UnitSize unit) {
  const UnitSize element = element_size(job.cast);
  const bool is_copy = job.cast.from == job.cast.to;
  DenseSplit split = {};
  split.source = job.source + job.first_elem * element.source_bytes;
  split.target = job.target + job.first_elem * element.target_bytes;
  split.item = is_copy ? UnitSize{1, 1} : element;
  const std::uint64_t items = is_copy ? job.elems * element.source_bytes : job.elems;
  const std::uint64_t before = (unit.target_bytes - split.target % unit.target_bytes) % unit.target_bytes;
  const std::uint64_t head = before / split.item.target_bytes;
  split.head = head < items ? head : items;
  const std::uint64_t unit_items = unit.target_bytes / split.item.target_bytes;
  split.units = (items - split.head) / unit_items;
  split.tail = items - split.head - split.units * unit_items;
  return split;
}

/// Sums of two numbers below this fit in 32 bits.
inline constexpr std::uint64_t kSmallLimit = std::uint64_t{1} << 31;

/// Whether all numbers that are divided or are divisors fit in 32 bits, with units of this size.
[[nodiscard]] LADING_BOTH inline bool is_small(const MoveJob& job, UnitSize unit) {
  const std::uint64_t from_bytes = element_bytes(static_cast<DType>(job.cast.from));
  std::uint64_t numbers = job.elems * from_bytes / unit.source_bytes;
  if (job.loop_count != 0) numbers |= job.run_elems * from_bytes / unit.source_bytes;
  for (std::uint32_t i = 1; i < job.loop_count; ++i) numbers |= job.loops[i].count;
  return numbers < kSmallLimit;
}

/// Each can be made by another thread: part 0 is where unit 0 stands, part 1 + i the divider of loop i (of the run, for
/// i = kMaxJobLoops).
inline constexpr std::uint32_t kMovePlanParts = 2 + kMaxJobLoops;

/// No unit reaches over the end of a run. Of a job without loops these are the units of its middle: DenseSplit.
LADING_BOTH inline void make_plan_part(const MoveJob& job, UnitSize unit, std::uint32_t part, MovePlan& plan) {
  if (part == 0) {
    plan.unit = unit;
    plan.loop_count = job.loop_count;
    plan.is_small = is_small(job, unit) ? 1 : 0;
  }
  if (job.loop_count == 0) {
    if (part != 0) return;
    const DenseSplit split = split_dense(job, unit);
    plan.source = split.source + split.head * split.item.source_bytes;
    plan.target = split.target + split.head * split.item.target_bytes;
    plan.units = split.units;
    return;
  }
  // Units are bytes of elements, or whole numbers of elements.
  const std::uint64_t from_bytes = element_bytes(static_cast<DType>(job.cast.from));
  const std::uint64_t run_units = job.run_elems * from_bytes / unit.source_bytes;
  if (part == 0) {
    plan.source = job.source;
    plan.target = job.target;
    plan.units = job.elems * from_bytes / unit.source_bytes;
    const std::uint64_t first_unit = job.first_elem * from_bytes / unit.source_bytes;
    std::uint64_t rest = first_unit / run_units;
    plan.first_in_run = first_unit - rest * run_units;
    for (std::uint32_t i = job.loop_count; i-- > 1;) {
      const std::uint64_t outer = rest / job.loops[i].count;
      plan.levels[i].first = rest - outer * job.loops[i].count;
      rest = outer;
    }
    plan.levels[0].first = rest;
  } else if (part == kMovePlanParts - 1) {
    plan.run = make_divider(run_units);
  } else if (part - 1 < job.loop_count) {
    const JobLoop& loop = job.loops[part - 1];
    MoveLevel& level = plan.levels[part - 1];
    level.count = make_divider(loop.count);
    level.source_stride_bytes = loop.source_stride_bytes;
    level.target_stride_bytes = loop.target_stride_bytes;
  }
}

struct UnitAddress {
  std::uint64_t source;
  std::uint64_t target;
};

template <class Index>
[[nodiscard]] LADING_BOTH inline UnitAddress address_of(const MovePlan& plan, Index unit) {
  if (plan.loop_count == 0) {
    return {plan.source + std::uint64_t{unit} * plan.unit.source_bytes,
            plan.target + std::uint64_t{unit} * plan.unit.target_bytes};
  }
  const Index in_run = static_cast<Index>(plan.first_in_run) + unit;
  Index rest = divide(in_run, plan.run);
  const auto place = static_cast<Index>(in_run - rest * static_cast<Index>(plan.run.divisor));
  UnitAddress address = {plan.source + std::uint64_t{place} * plan.unit.source_bytes,
                         plan.target + std::uint64_t{place} * plan.unit.target_bytes};
  for (std::uint32_t i = plan.loop_count; i-- > 1;) {
    const MoveLevel& level = plan.levels[i];
    const Index index = static_cast<Index>(level.first) + rest;
    rest = divide(index, level.count);
    const std::uint64_t at = index - rest * static_cast<Index>(level.count.divisor);
    address.source += at * level.source_stride_bytes;
    address.target += at * level.target_stride_bytes;
  }
  const std::uint64_t at = plan.levels[0].first + rest;
  address.source += at * plan.levels[0].source_stride_bytes;
  address.target += at * plan.levels[0].target_stride_bytes;
  return address;
}

}  // namespace lading::device::cuda
