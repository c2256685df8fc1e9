#include "device/slab.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdint>

namespace lading::device {
namespace {

std::size_t round_up(std::size_t value, std::size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

Slab& Slab::operator=(Slab&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

Slab::~Slab() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), round_up(bytes_.size(), kHugePageBytes));
}

Result<Slab> Slab::allocate(std::size_t size_bytes) {
  if (size_bytes == 0) return Slab();
  const auto refuse = [&] {
    return fail(Error(Code::kOutOfMemory, fmt::format("could not allocate {} bytes of host memory", size_bytes))
                    .try_this("Free memory, or raise the limit (ulimit -v, cgroup)."));
  };
  if (size_bytes > SIZE_MAX / 2) return refuse();
  // mmap aligns to small pages: take one huge page more and give back what is outside.
  const std::size_t wanted = round_up(size_bytes, kHugePageBytes);
  const std::size_t mapped = wanted + kHugePageBytes;
  void* const start =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return refuse();
  auto* const first = static_cast<std::byte*>(start);
  const std::size_t skipped =
      round_up(reinterpret_cast<std::uintptr_t>(first), kHugePageBytes) - reinterpret_cast<std::uintptr_t>(first);
  if (skipped > 0) ::munmap(first, skipped);
  if (const std::size_t left = mapped - skipped - wanted; left > 0) ::munmap(first + skipped + wanted, left);
  const std::span<std::byte> bytes(first + skipped, size_bytes);
  prefer_huge_pages(bytes);
  return Slab(bytes);
}

void prefer_huge_pages(std::span<std::byte> memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::uintptr_t begin = round_up(address, Slab::kHugePageBytes);
  const std::uintptr_t end = (address + memory.size()) / Slab::kHugePageBytes * Slab::kHugePageBytes;
  if (begin >= end) return;
  ::madvise(memory.data() + (begin - address), end - begin, MADV_HUGEPAGE);
}

}  // namespace lading::device
