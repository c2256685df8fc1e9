// A product of two thin matrices, added to a matrix: weight += scale * (rows · columns), as merging a LoRA does.
//
// Every sum begins with 0 and goes over the rank in order, with one fma in F32 for each term: the bits of the BLAS that
// torch uses on CPUs, for ranks up to 192 where MKL was tried. It is multiplied by the scale and then added to the
// weight, each rounded to F32. The same bits on every machine; thread-safe, no state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lading::device {

struct LowRank {
  const float* rows = nullptr;  ///< element (i, k) at i * row_step + k * rank_step
  std::size_t row_step = 0;
  std::size_t rank_step = 0;
  const float* columns = nullptr;  ///< element (k, j) at k * width + j
  std::size_t rank = 0;
  std::size_t width = 0;  ///< of a row of the weight
  float scale = 1;
};

/// `weight` is elements [first_elem, …) of the row-major matrix. The width is not 0.
void add_low_rank(const LowRank& factors, std::uint64_t first_elem, std::span<float> weight);

}  // namespace lading::device
