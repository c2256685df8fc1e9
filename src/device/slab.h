// Slab: a stretch of host memory of our own, in huge pages where the kernel gives them. Move-only; unmapped at the end.
//
// Fresh memory costs more to touch than a cached file costs to read; huge pages make that a fifth (bench/results).
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "lading/result.h"

namespace lading::device {

class Slab {
 public:
  static constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

  Slab() = default;
  Slab(Slab&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Slab& operator=(Slab&& other) noexcept;
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  ~Slab();

  /// Zeroed, not yet touched, aligned to a huge page. 0 bytes make an empty slab.
  static Result<Slab> allocate(std::size_t size_bytes);

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

  /// Leaves the memory mapped for ever: for what a broken device may still read.
  void leak() { bytes_ = {}; }

 private:
  explicit Slab(std::span<std::byte> bytes) : bytes_(bytes) {}

  std::span<std::byte> bytes_;
};

/// Asks for huge pages under memory that somebody else allocated. Changes no byte; may do nothing.
void prefer_huge_pages(std::span<std::byte> memory);

}  // namespace lading::device
