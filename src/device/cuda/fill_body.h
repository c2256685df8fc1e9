// A constant, written to device memory by many threads. Any alignment. No state.
#pragma once

#include <cstdint>

#include "device/cuda/gpu_memory.h"
#include "device/cuda/kernel_jobs.h"

namespace lading::device::cuda {

/// The byte of the fill that stands `offset_bytes` behind its first, given the first eight.
[[nodiscard]] LADING_BOTH constexpr std::uint8_t fill_byte(std::uint64_t pattern, std::uint64_t offset_bytes) {
  return static_cast<std::uint8_t>(pattern >> (8 * (offset_bytes % 8)));
}

/// The eight bytes that begin there. Byte by byte: clang 14 compiles a rotation by a number that it does not know to
/// PTX that is wrong for 64 bits and more.
[[nodiscard]] LADING_BOTH constexpr std::uint64_t fill_pattern(std::uint64_t pattern, std::uint64_t offset_bytes) {
  std::uint64_t turned = 0;
#pragma GCC unroll 8
  for (unsigned i = 0; i < 8; ++i) turned |= std::uint64_t{fill_byte(pattern, offset_bytes + i)} << (8 * i);
  return turned;
}

LADING_BOTH inline void fill_body(const FillJob& job, ThreadPlace place) {
  std::uint64_t pattern = job.bits;
  for (unsigned bytes = job.element_bytes; bytes < 8; bytes *= 2) {
    pattern &= (std::uint64_t{1} << (8 * bytes)) - 1;
    pattern |= pattern << (8 * bytes);
  }
  const std::uint64_t size = job.elems * job.element_bytes;
  const std::uint64_t to_aligned = (16 - job.target % 16) % 16;
  const std::uint64_t head = to_aligned < size ? to_aligned : size;
  const std::uint64_t wide = (size - head) / 16;
  const std::uint64_t wide_end = head + 16 * wide;

  const std::uint64_t turned = fill_pattern(pattern, head);
  const auto low = static_cast<std::uint32_t>(turned);
  const auto high = static_cast<std::uint32_t>(turned >> 32);
  const Words4 words = {low, high, low, high};
  for (std::uint64_t i = place.thread; i < wide; i += place.threads) store(job.target + head + 16 * i, words);

  // Less than 16 bytes on either side.
  for (std::uint64_t i = place.thread; i < head; i += place.threads) {
    store(job.target + i, fill_byte(pattern, i));
  }
  for (std::uint64_t i = wide_end + place.thread; i < size; i += place.threads) {
    store(job.target + i, fill_byte(pattern, i));
  }
}

}  // namespace lading::device::cuda
