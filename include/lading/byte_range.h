// ByteRange: a half-open interval of bytes in a file or a buffer.
#pragma once

#include <cstdint>

namespace lading {

struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  [[nodiscard]] std::uint64_t size_bytes() const { return end - begin; }
  [[nodiscard]] bool satisfies_invariants() const { return begin <= end; }

  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

}  // namespace lading
