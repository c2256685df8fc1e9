// Digest: 128 bits of a tensor that do not depend on how it is cut (docs/how-it-works/digests.md).
//
// The tensor's bytes, row-major and little-endian, are a string of 32-bit words. Lane l of the digest is
//   sum over all words w of  word[w] * k(l, w)   mod 2^64,     k(l, w) = table[l][w % 1024] * block_key(l, w / 1024)
// with table entries odd and below 2^32, block keys odd and below 2^64, both fixed for ever:
// docs/how-it-works/digests.md. It is linear in the words, so a word that is cut in two counts in parts, shards add up
// to the whole, and any order will do. A change of one word always shows; any other change that was made without regard
// to the keys is missed with a chance below 2^-50. It guards against accidents, not adversaries. Zeros add nothing:
// completeness is counted in bytes, not by digest. Thread-safe, no state.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace lading::device {

struct Digest {
  std::array<std::uint64_t, 2> lanes = {};

  Digest& operator+=(const Digest& other) {
    lanes[0] += other.lanes[0];
    lanes[1] += other.lanes[1];
    return *this;
  }
  /// 32 hexadecimal digits: lane 0, then lane 1.
  [[nodiscard]] std::string text() const;

  friend bool operator==(const Digest&, const Digest&) = default;
};

/// Of bytes that stand at [global_begin_bytes, …) of the tensor. Any alignment on both sides.
[[nodiscard]] Digest digest_of(std::span<const std::byte> bytes, std::uint64_t global_begin_bytes);

}  // namespace lading::device
