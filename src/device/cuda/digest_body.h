// The digest of device/digest.h, as the threads of a block compute it together.
//
// A group of 128 threads takes a digest block of 1024 words: each thread eight words, always the same places of the
// block, whose table entries it holds in registers. Bytes outside the range are not read and count as 0. No state.
#pragma once

#include <cstdint>

#include "device/cuda/gpu_memory.h"
#include "device/cuda/kernel_jobs.h"
#include "device/digest_keys.h"

namespace lading::device::cuda {

inline constexpr std::uint32_t kDigestGroup = 128;
inline constexpr std::uint64_t kDigestBlockBytes = 4 * kDigestBlockWords;
/// A thread's eight words are two times four, this far apart.
inline constexpr std::uint64_t kDigestHalfBytes = kDigestBlockBytes / 2;

struct DigestSums {
  std::uint64_t lane0 = 0;
  std::uint64_t lane1 = 0;
};

/// The four words at [place, place + 16) of the tensor.
[[nodiscard]] LADING_BOTH inline Words4 digest_words(const DigestRange& range, std::uint64_t place) {
  const std::uint64_t end = range.global_begin_bytes + range.size_bytes;
  const std::uint64_t address = range.memory + (place - range.global_begin_bytes);
  const bool is_whole = place >= range.global_begin_bytes && place + 16 <= end;
  if (is_whole && address % 16 == 0) return load<Words4>(address);
  Words4 words = {};
  if (is_whole && address % 4 == 0) {
#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; ++i) words[i] = load<std::uint32_t>(address + 4 * i);
    return words;
  }
#pragma GCC unroll 16
  for (unsigned i = 0; i < 16; ++i) {
    const bool is_inside = place + i >= range.global_begin_bytes && place + i < end;
    if (is_inside) words[i / 4] |= std::uint32_t{load<std::uint8_t>(address + i)} << (8 * (i % 4));
  }
  return words;
}

[[nodiscard]] LADING_BOTH inline std::uint64_t digest_products(Words4 words, Words4 entries) {
  std::uint64_t sum = 0;
#pragma GCC unroll 4
  for (unsigned i = 0; i < 4; ++i) sum += std::uint64_t{words[i]} * entries[i];
  return sum;
}

/// What one thread adds. Threads come in groups of kDigestGroup; `tables` is the address of kDigestTables.
[[nodiscard]] LADING_BOTH inline DigestSums digest_body(const DigestRange& range, std::uint64_t tables,
                                                        ThreadPlace place) {
  const std::uint64_t at = std::uint64_t{16} * (place.thread % kDigestGroup);
  const Words4 entries00 = load<Words4>(tables + at);
  const Words4 entries01 = load<Words4>(tables + at + kDigestHalfBytes);
  const Words4 entries10 = load<Words4>(tables + kDigestBlockBytes + at);
  const Words4 entries11 = load<Words4>(tables + kDigestBlockBytes + at + kDigestHalfBytes);

  DigestSums sums;
  const std::uint64_t end = range.global_begin_bytes + range.size_bytes;
  const std::uint64_t end_block = (end + kDigestBlockBytes - 1) / kDigestBlockBytes;
  const std::uint32_t groups = place.threads / kDigestGroup;
  std::uint64_t block = range.global_begin_bytes / kDigestBlockBytes + place.thread / kDigestGroup;
#pragma GCC unroll 2
  for (; block < end_block; block += groups) {
    const std::uint64_t begin = block * kDigestBlockBytes + at;
    const Words4 words0 = digest_words(range, begin);
    const Words4 words1 = digest_words(range, begin + kDigestHalfBytes);
    sums.lane0 +=
        digest_block_key(0, block) * (digest_products(words0, entries00) + digest_products(words1, entries01));
    sums.lane1 +=
        digest_block_key(1, block) * (digest_products(words0, entries10) + digest_products(words1, entries11));
  }
  return sums;
}

}  // namespace lading::device::cuda
