// Moves out of quantized tensors: the runs of a nest of loops, each dequantized by itself, or many short ones together.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "device/move.h"
#include "device/quantized/dequantize.h"

namespace lading::device {
namespace {

// Shorter runs that lie evenly in the source are made side by side first, and then moved.
constexpr std::uint64_t kLongRun = 64;
constexpr std::uint64_t kTileElems = 128;
// Beyond this, codes of a run are no longer in one line of the cache.
constexpr std::uint64_t kFarthestCode = 64;
constexpr std::size_t kMostBytes = 8;

struct ScaledLoop {
  ByteLoop bytes;
  std::uint64_t stride_elems = 0;
};

class ScaledMover {
 public:
  explicit ScaledMover(const Move& move)
      : move_(move), dequantizer_(*move.scaling->scales, move.from, move.to), width_bytes_(bits(move.to) / 8) {
    for (std::size_t i = 0; i < move.loops.size(); ++i) {
      if (move.loops[i].count == 0) is_empty_ = true;
      if (move.loops[i].count != 1) loops_.push_back({move.loops[i], move.scaling->strides_elems[i]});
    }
    if (move.run_elems < kLongRun) choose_lines();
  }

  void run() {
    if (!is_empty_) walk(0, {move_.source, move_.target, move_.scaling->first_elem});
  }

 private:
  struct Place {
    const std::byte* source = nullptr;
    std::byte* target = nullptr;
    std::uint64_t elem = 0;
  };

  [[nodiscard]] static Place moved(const Place& place, const ScaledLoop& loop, std::uint64_t rounds) {
    return {place.source + rounds * loop.bytes.source_stride_bytes,
            place.target + rounds * loop.bytes.target_stride_bytes, place.elem + rounds * loop.stride_elems};
  }

  // Whether the runs of its rounds lie in the source as they do in the tensor: end to end, or, if each is one element,
  // evenly and near each other.
  [[nodiscard]] bool makes_lines(const ScaledLoop& loop) const {
    if (loop.bytes.source_stride_bytes << dequantizer_.log2_codes_in_byte() != loop.stride_elems) return false;
    return move_.run_elems == 1 ? loop.stride_elems != 0 && loop.stride_elems <= kFarthestCode
                                : loop.stride_elems == move_.run_elems;
  }

  // Lines are cut into tiles; around them goes first the loop that takes the smallest steps in the target, so that both
  // sides of a transpose stay in the cache.
  void choose_lines() {
    auto found = loops_.end();
    for (auto loop = loops_.begin(); loop != loops_.end(); ++loop) {
      if (makes_lines(*loop) && (found == loops_.end() || loop->stride_elems < found->stride_elems)) found = loop;
    }
    if (found == loops_.end()) return;
    const ScaledLoop line = *found;
    loops_.erase(found);
    std::stable_sort(loops_.begin(), loops_.end(), [](const ScaledLoop& a, const ScaledLoop& b) {
      return a.bytes.target_stride_bytes > b.bytes.target_stride_bytes;
    });
    ScaledLoop tiles = line;
    rounds_of_tile_ = std::max<std::uint64_t>(1, kTileElems / move_.run_elems);
    tiles.bytes.count = (line.bytes.count + rounds_of_tile_ - 1) / rounds_of_tile_;
    tiles.bytes.source_stride_bytes *= rounds_of_tile_;
    tiles.bytes.target_stride_bytes *= rounds_of_tile_;
    tiles.stride_elems *= rounds_of_tile_;
    tile_level_ = loops_.empty() ? 0 : loops_.size() - 1;
    loops_.insert(loops_.begin() + static_cast<std::ptrdiff_t>(tile_level_), tiles);
    line_ = line;
    has_lines_ = true;
  }

  void walk(std::size_t level, const Place& place) {
    if (level == loops_.size()) return has_lines_ ? move_line(place) : run_at(place);
    for (std::uint64_t i = 0; i < loops_[level].bytes.count; ++i) {
      if (has_lines_ && level == tile_level_) {
        rounds_ = std::min(rounds_of_tile_, line_.bytes.count - i * rounds_of_tile_);
      }
      walk(level + 1, moved(place, loops_[level], i));
    }
  }

  [[nodiscard]] CodeRun codes_at(const Place& place, std::uint64_t count, std::uint64_t stride) const {
    return {place.source, count, move_.scaling->first_code, stride};
  }

  void run_at(const Place& place) { dequantizer_.run(codes_at(place, move_.run_elems, 1), place.elem, place.target); }

  void move_line(const Place& place) {
    alignas(64) std::array<std::byte, std::max(kLongRun, kTileElems) * kMostBytes> made;
    const std::uint64_t stride = move_.run_elems == 1 ? line_.stride_elems : 1;
    dequantizer_.run(codes_at(place, rounds_ * move_.run_elems, stride), place.elem, made.data());
    const ByteLoop loop{rounds_, move_.run_elems * width_bytes_, line_.bytes.target_stride_bytes};
    Move scatter;
    scatter.source = made.data();
    scatter.target = place.target;
    scatter.run_elems = move_.run_elems;
    scatter.from = scatter.to = move_.to;
    scatter.loops = {&loop, 1};
    move_on_host(scatter);
  }

  const Move& move_;
  Dequantizer dequantizer_;
  std::uint64_t width_bytes_;
  std::vector<ScaledLoop> loops_;  // outermost first
  bool is_empty_ = false;
  bool has_lines_ = false;
  ScaledLoop line_;
  std::size_t tile_level_ = 0;
  std::uint64_t rounds_of_tile_ = 1;
  std::uint64_t rounds_ = 0;  // of the tile at hand
};

}  // namespace

void dequantize_on_host(const Move& move) {
  if (move.run_elems == 0) return;
  ScaledMover(move).run();
}

}  // namespace lading::device
