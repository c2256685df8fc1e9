// Casts of arrays between element types, on the host.
//
// A cast is one correctly rounded step: to nearest, ties to even. A NaN becomes quiet and keeps its sign and the
// top bits of its payload; ±Inf stays where the target has it. docs/how-it-works/casts.md says the rest. The thread's
// floating-point environment does not matter. Widening integers is exact. Thread-safe, no state.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lading/dtype.h"

namespace lading::device {

/// Reads `elems` elements at `source`, writes as many at `target`. Neither side need be aligned; they may not overlap.
using Cast = void (*)(const std::byte* source, std::byte* target, std::size_t elems);

/// Null where the contract knows no such cast (R24, R48), and for from == to. Picks the best code for this machine.
[[nodiscard]] Cast find_cast(DType from, DType to);

/// The bits of a number in `dtype`, one rounding, little-endian in the low bytes; for fills. Only where has_bits_for().
[[nodiscard]] std::uint64_t bits_of(double value, DType dtype);
/// Whether there are such bits: of packed dtypes for 0 only, of integers within their range.
[[nodiscard]] bool has_bits_for(double value, DType dtype);

}  // namespace lading::device
