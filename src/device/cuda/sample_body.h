// Initial values: device/random_word.h, made by many threads and cast once. No state.
//
// A thread takes the four elements of one Philox counter at a time.
#pragma once

#include <cstdint>

#include "device/cuda/element_cast.h"
#include "device/cuda/gpu_memory.h"
#include "device/cuda/kernel_jobs.h"
#include "device/random_word.h"

namespace lading::device::cuda {

template <CastKind kKind>
LADING_BOTH inline void sample_as(const SampleJob& job, const CastRecipe& recipe, ThreadPlace place) {
  const unsigned bytes = element_bytes(static_cast<DType>(job.dtype));
  const std::uint64_t end = job.first_elem + job.elems;
#pragma GCC unroll 1
  for (std::uint64_t quad = job.first_elem / 4 + place.thread; 4 * quad < end; quad += place.threads) {
    const std::array<std::uint32_t, 4> words = random_words(RandomKey{job.key}, quad);
#pragma GCC unroll 1
    for (unsigned i = 0; i < 4; ++i) {
      const std::uint64_t elem = 4 * quad + i;
      if (elem < job.first_elem || elem >= end) continue;
      // Not words[i]: an index that is known only when running would put the words into memory.
      const std::uint32_t word = i == 0 ? words[0] : i == 1 ? words[1] : i == 2 ? words[2] : words[3];
      const auto code = __builtin_bit_cast(std::uint32_t, value_of(job.parameters, word));
      store_element(job.target + (elem - job.first_elem) * bytes, bytes, cast_element<kKind>(recipe, code));
    }
  }
}

LADING_BOTH inline void sample_body(const SampleJob& job, ThreadPlace place) {
  const CastRecipe recipe = cast_recipe(DType::kF32, static_cast<DType>(job.dtype));
  if (recipe.kind == CastKind::kCarry) return sample_as<CastKind::kCarry>(job, recipe, place);
  if (recipe.kind == CastKind::kFloat) return sample_as<CastKind::kFloat>(job, recipe, place);
  sample_as<CastKind::kFloat64>(job, recipe, place);
}

}  // namespace lading::device::cuda
