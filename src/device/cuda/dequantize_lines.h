// Jobs that transpose: a thread takes a line, several rounds of one loop, instead of one element.
//
// All elements of a line share a scale, so that addresses and scales are found once for all of them. It is read in one
// word where its bytes are side by side, and written in one where its results are.
#pragma once

#include <cstdint>
#include <optional>

#include "device/cuda/kernel_jobs.h"

namespace lading::device::cuda {

/// How many rounds make a line: those whose results are 16 bytes.
[[nodiscard]] std::uint32_t rounds_of_line(const DequantizeJob& job);

/// The loop of a whole move whose rounds can be taken in lines, if there is one; some of the last rounds may be too few
/// for a line.
[[nodiscard]] std::optional<std::uint32_t> loop_of_lines(const DequantizeJob& job);

/// From now on, what the job counts as elements are lines. The loop's rounds must be a multiple of a line's.
void take_lines(std::uint32_t loop, DequantizeJob& job);

}  // namespace lading::device::cuda
