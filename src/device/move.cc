#include "device/move.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/element_bytes.h"
#include "device/cast.h"
#include "lading/shape.h"

namespace lading::device {
namespace {

// Both sides of a transpose cannot be walked in order; within a tile both stay in the first cache.
constexpr std::uint64_t kTile = 32;
// A cast of scattered elements goes through a small buffer, so that it can work on a row of them at once.
constexpr std::size_t kGatherElems = 512;

template <std::size_t kBytes>
void copy_rows(std::byte* target, const std::byte* source, const ByteLoop& loop) {
  for (std::uint64_t i = 0; i < loop.count; ++i) {
    std::memcpy(target + i * loop.target_stride_bytes, source + i * loop.source_stride_bytes, kBytes);
  }
}

void copy_rows(std::byte* target, const std::byte* source, const ByteLoop& loop, std::uint64_t run_bytes) {
  switch (run_bytes) {
    case 1: return copy_rows<1>(target, source, loop);
    case 2: return copy_rows<2>(target, source, loop);
    case 4: return copy_rows<4>(target, source, loop);
    case 8: return copy_rows<8>(target, source, loop);
    default:
      for (std::uint64_t i = 0; i < loop.count; ++i) {
        std::memcpy(target + i * loop.target_stride_bytes, source + i * loop.source_stride_bytes, run_bytes);
      }
  }
}

class Mover {
 public:
  explicit Mover(const Move& move)
      : move_(move),
        cast_(move.from == move.to ? nullptr : find_cast(move.from, move.to)),
        source_bytes_(bytes_of_elems(move.run_elems, move.from)),
        target_bytes_(bytes_of_elems(move.run_elems, move.to)) {
    LADING_CHECK(move.from == move.to || cast_ != nullptr);
  }

  void run() const { walk(move_.loops, move_.source, move_.target); }

 private:
  void walk(std::span<const ByteLoop> loops, const std::byte* source, std::byte* target) const {
    if (loops.empty()) return rows({1, 0, 0}, source, target);
    if (loops.size() == 1) return rows(loops[0], source, target);
    if (loops.size() == 2 && source_bytes_ <= 16) return tiles(loops[0], loops[1], source, target);
    for (std::uint64_t i = 0; i < loops[0].count; ++i) {
      walk(loops.subspan(1), source + i * loops[0].source_stride_bytes, target + i * loops[0].target_stride_bytes);
    }
  }

  void tiles(const ByteLoop& outer, const ByteLoop& inner, const std::byte* source, std::byte* target) const {
    for (std::uint64_t j = 0; j < inner.count; j += kTile) {
      const ByteLoop row{std::min(kTile, inner.count - j), inner.source_stride_bytes, inner.target_stride_bytes};
      for (std::uint64_t i = 0; i < outer.count; ++i) {
        rows(row, source + i * outer.source_stride_bytes + j * inner.source_stride_bytes,
             target + i * outer.target_stride_bytes + j * inner.target_stride_bytes);
      }
    }
  }

  void rows(const ByteLoop& loop, const std::byte* source, std::byte* target) const {
    if (cast_ == nullptr) return copy_rows(target, source, loop, target_bytes_);
    if (move_.run_elems >= 64) {
      for (std::uint64_t i = 0; i < loop.count; ++i) {
        cast_(source + i * loop.source_stride_bytes, target + i * loop.target_stride_bytes, move_.run_elems);
      }
      return;
    }
    gather_and_cast(loop, source, target);
  }

  void gather_and_cast(const ByteLoop& loop, const std::byte* source, std::byte* target) const {
    alignas(64) std::array<std::byte, kGatherElems * 8> gathered;
    alignas(64) std::array<std::byte, kGatherElems * 8> made;
    const std::uint64_t at_once = kGatherElems / move_.run_elems;
    for (std::uint64_t begin = 0; begin < loop.count; begin += at_once) {
      const std::uint64_t count = std::min(at_once, loop.count - begin);
      copy_rows(gathered.data(), source + begin * loop.source_stride_bytes,
                {count, loop.source_stride_bytes, source_bytes_}, source_bytes_);
      cast_(gathered.data(), made.data(), count * move_.run_elems);
      copy_rows(target + begin * loop.target_stride_bytes, made.data(),
                {count, target_bytes_, loop.target_stride_bytes}, target_bytes_);
    }
  }

  const Move& move_;
  Cast cast_;
  std::uint64_t source_bytes_;
  std::uint64_t target_bytes_;
};

}  // namespace

void move_on_host(const Move& move) {
  if (move.run_elems == 0) return;
  Mover(move).run();
}

void fill_on_host(const Fill& fill) {
  const std::uint64_t size_bytes = fill.elems * bits(fill.dtype) / 8;
  if (size_bytes == 0) return;
  const std::uint64_t element_bytes = std::max(1U, bits(fill.dtype) / 8);
  if (fill.bits == 0 || element_bytes == 1) {
    std::memset(fill.target, static_cast<int>(fill.bits & 0xFF), size_bytes);
    return;
  }
  // One element, then doubled until it is enough.
  std::memcpy(fill.target, &fill.bits, element_bytes);
  for (std::uint64_t done = element_bytes; done < size_bytes; done *= 2) {
    std::memcpy(fill.target + done, fill.target, std::min(done, size_bytes - done));
  }
}

}  // namespace lading::device
