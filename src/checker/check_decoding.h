// How a quantized source is decoded (R48): that its shape is that of its codes, and that the sources of its scales,
// zero points and tensor scale fit it. Internal to the room.
#pragma once

#include <cstdint>
#include <optional>

#include "checker/plan_types.h"
#include "lading/result.h"

namespace lading::checker {

/// Nothing: blocks of no elements.
[[nodiscard]] std::optional<std::uint64_t> blocks_of(std::uint64_t extent, std::uint64_t block);

/// What is wrong with the scaling of a source. Its own bytes and shape must hold.
[[nodiscard]] std::optional<Error> find_scaling_problem(const Plan& plan, const Source& source);

/// Whether elements of the source become elements of `to`: cast, or multiplied by their scales and rounded once.
[[nodiscard]] bool values_fit(const Plan& plan, const Source& source, DType to);

}  // namespace lading::checker
