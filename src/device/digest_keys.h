// The keys of the digest, fixed for ever: docs/how-it-works/digests.md says them in words.
//
// All are numbers of splitmix64's sequence, from four starting points: the first 256 bits of the fraction of pi.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace lading::device {

inline constexpr std::size_t kDigestLanes = 2;
inline constexpr std::size_t kDigestBlockWords = 1024;

/// Number n of the sequence that starts at `seed`.
[[nodiscard]] constexpr std::uint64_t splitmix64(std::uint64_t seed, std::uint64_t n) {
  std::uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

inline constexpr std::array<std::uint64_t, kDigestLanes> kDigestTableSeeds = {0x243f6a8885a308d3, 0x13198a2e03707344};
inline constexpr std::array<std::uint64_t, kDigestLanes> kDigestBlockSeeds = {0xa4093822299f31d0, 0x082efa98ec4e6c89};

struct DigestTables {
  alignas(64) std::array<std::array<std::uint32_t, kDigestBlockWords>, kDigestLanes> of_lane;
};

inline constexpr DigestTables kDigestTables = [] {
  DigestTables tables{};
  for (std::size_t lane = 0; lane < kDigestLanes; ++lane) {
    for (std::size_t i = 0; i < kDigestBlockWords; ++i) {
      tables.of_lane[lane][i] = static_cast<std::uint32_t>(splitmix64(kDigestTableSeeds[lane], i) >> 32) | 1U;
    }
  }
  return tables;
}();

[[nodiscard]] constexpr std::uint64_t digest_block_key(std::size_t lane, std::uint64_t block) {
  return splitmix64(kDigestBlockSeeds[lane], block) | 1U;
}

}  // namespace lading::device
