#include "mapping/cut_pieces.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "lading/result.h"
#include "mapping/pieces.h"

namespace lading::mapping {
namespace {

void advance(Piece& piece, const PieceLoop& loop, std::uint64_t iterations) {
  piece.target_origin[loop.target_dim] += iterations * loop.target_step;
  if (!piece.is_fill()) piece.source_origin[loop.source_dim] += iterations * loop.source_step;
}

Piece without_loop(const Piece& piece, std::size_t loop, std::uint64_t at_iteration) {
  Piece fixed = piece;
  fixed.loops.erase(fixed.loops.begin() + static_cast<std::ptrdiff_t>(loop));
  advance(fixed, piece.loops[loop], at_iteration);
  return fixed;
}

std::vector<std::size_t> loops_on(const Piece& piece, std::size_t dim) {
  std::vector<std::size_t> loops;
  for (std::size_t i = 0; i < piece.loops.size(); ++i) {
    if (piece.loops[i].target_dim == dim) loops.push_back(i);
  }
  std::sort(loops.begin(), loops.end(),
            [&](std::size_t a, std::size_t b) { return piece.loops[a].target_step > piece.loops[b].target_step; });
  return loops;
}

class Redigit {
 public:
  Redigit(const DigitMap& map, std::vector<Piece>& out) : map_(map), strides_(map.factors.size(), 1), out_(out) {
    for (std::size_t j = map.factors.size(); j-- > 1;) strides_[j - 1] = strides_[j] * map.factors[j];
  }

  void run(Piece piece) {
    std::vector<Piece> todo;
    todo.push_back(std::move(piece));
    while (!todo.empty()) {
      Piece next = std::move(todo.back());
      todo.pop_back();
      if (emit_if_aligned(next)) continue;
      if (split_a_loop(next)) {
        todo.push_back(std::move(next));
        continue;
      }
      const std::size_t outermost = loops_on(next, map_.dim).front();
      if (!cut_at_digits(next, outermost, todo)) unroll(next, outermost, todo);
    }
  }

 private:
  [[nodiscard]] std::uint64_t digit(std::uint64_t index, std::size_t j) const {
    return index / strides_[j] % map_.factors[j];
  }

  // The digit that a step moves: the outermost whose stride divides it and is not larger.
  [[nodiscard]] std::optional<std::size_t> digit_of_step(std::uint64_t step) const {
    for (std::size_t j = 0; j < strides_.size(); ++j) {
      if (strides_[j] <= step && step % strides_[j] == 0) return j;
    }
    return std::nullopt;
  }

  // Every loop moves one digit, and no digit carries into the next.
  bool emit_if_aligned(const Piece& piece) {
    const std::uint64_t origin = piece.target_origin[map_.dim];
    std::vector<std::uint64_t> highest(map_.factors.size());
    for (std::size_t j = 0; j < highest.size(); ++j) highest[j] = digit(origin, j);
    Piece moved = piece;
    for (PieceLoop& loop : moved.loops) {
      if (loop.target_dim != map_.dim) {
        loop.target_dim = map_.other_dims[loop.target_dim];
        continue;
      }
      const auto j = digit_of_step(loop.target_step);
      if (!j) return false;
      highest[*j] += (loop.count - 1) * (loop.target_step / strides_[*j]);
      if (highest[*j] >= map_.factors[*j]) return false;
      loop.target_step = loop.target_step / strides_[*j] * map_.new_step[*j];
      loop.target_dim = map_.new_dim[*j];
    }
    moved.target_origin.assign(map_.new_rank, 0);
    for (std::size_t d = 0; d < piece.target_origin.size(); ++d) {
      if (d != map_.dim) moved.target_origin[map_.other_dims[d]] = piece.target_origin[d];
    }
    for (std::size_t j = 0; j < map_.factors.size(); ++j) {
      moved.target_origin[map_.new_dim[j]] += digit(origin, j) * map_.new_step[j];
    }
    out_.push_back(std::move(moved));
    return true;
  }

  // A loop that runs over several digits and starts at the bottom of the inner ones becomes two.
  bool split_a_loop(Piece& piece) const {
    const std::uint64_t origin = piece.target_origin[map_.dim];
    for (std::size_t i = 0; i < piece.loops.size(); ++i) {
      const PieceLoop loop = piece.loops[i];
      if (loop.target_dim != map_.dim) continue;
      const auto j = digit_of_step(loop.target_step);
      if (!j || *j == 0) continue;
      const std::uint64_t boundary = strides_[*j - 1];
      if (boundary % loop.target_step != 0) continue;
      const std::uint64_t inner = boundary / loop.target_step;
      if (inner <= 1 || loop.count <= inner || loop.count % inner != 0 || origin % boundary / loop.target_step != 0)
        continue;
      piece.loops[i].count = inner;
      piece.loops.push_back({loop.count / inner, loop.source_dim, loop.source_step * inner, loop.target_dim, boundary});
      return true;
    }
    return false;
  }

  // Cuts a loop where it crosses the outermost digit that it crosses, so that its middle begins and ends
  // there. False if that would leave it whole.
  bool cut_at_digits(const Piece& piece, std::size_t loop_index, std::vector<Piece>& todo) const {
    const PieceLoop& loop = piece.loops[loop_index];
    const std::uint64_t origin = piece.target_origin[map_.dim];
    const std::uint64_t step = loop.target_step;
    const auto crosses = [&](std::uint64_t stride) {
      return origin / stride != (origin + (loop.count - 1) * step) / stride;
    };
    const auto crossed = std::find_if(strides_.begin(), strides_.end(), crosses);
    if (crossed == strides_.end() || *crossed % step != 0) return false;
    const std::uint64_t per_digit = *crossed / step;
    const std::uint64_t into_digit = origin % *crossed / step;
    const std::uint64_t head = into_digit == 0 ? 0 : per_digit - into_digit;
    const std::uint64_t tail = head + (loop.count - head) / per_digit * per_digit;
    const std::array<std::pair<std::uint64_t, std::uint64_t>, 3> stretches = {
        std::pair(std::uint64_t{0}, head), std::pair(head, tail), std::pair(tail, loop.count)};
    for (const auto& [from, to] : stretches) {
      if (to - from == loop.count) return false;
    }
    for (const auto& [from, to] : stretches) {
      if (from == to) continue;
      Piece part = piece;
      advance(part, loop, from);
      part.loops[loop_index].count = to - from;
      if (to - from == 1) part.loops.erase(part.loops.begin() + static_cast<std::ptrdiff_t>(loop_index));
      todo.push_back(std::move(part));
    }
    return true;
  }

  static void unroll(const Piece& piece, std::size_t loop, std::vector<Piece>& todo) {
    for (std::uint64_t i = 0; i < piece.loops[loop].count; ++i) todo.push_back(without_loop(piece, loop, i));
  }

  const DigitMap& map_;
  std::vector<std::uint64_t> strides_;
  std::vector<Piece>& out_;
};

void clip_into(Piece piece, std::size_t dim, std::uint64_t begin, std::uint64_t end, std::vector<Piece>& out) {
  const std::uint64_t origin = piece.target_origin[dim];
  const std::vector<std::size_t> loops = loops_on(piece, dim);
  std::uint64_t span = 0;  // from the first index to the last
  for (const std::size_t i : loops) span += (piece.loops[i].count - 1) * piece.loops[i].target_step;
  if (origin + span < begin || origin >= end) return;
  if (origin >= begin && origin + span < end) {
    out.push_back(std::move(piece));
    return;
  }
  // The outermost loop: a stretch of it lies inside whole, and what is left is cut deeper.
  const std::size_t outer = loops.front();
  const PieceLoop loop = piece.loops[outer];
  const std::uint64_t inner_span = span - (loop.count - 1) * loop.target_step;
  const std::uint64_t step = loop.target_step;
  std::uint64_t first = origin >= begin ? 0 : std::min((begin - origin + step - 1) / step, loop.count);
  std::uint64_t last = first;  // behind the whole ones
  if (origin + inner_span < end) last = std::min((end - 1 - origin - inner_span) / step + 1, loop.count);
  last = std::max(first, last);
  const auto partly = [&](std::uint64_t i) {
    const std::uint64_t low = origin + i * step;
    return low < end && low + inner_span >= begin;
  };
  for (std::uint64_t i = first; i-- > 0 && partly(i);) clip_into(without_loop(piece, outer, i), dim, begin, end, out);
  if (last > first) {
    Piece whole = last - first == 1 ? without_loop(piece, outer, first) : piece;
    if (last - first > 1) {
      advance(whole, loop, first);
      whole.loops[outer].count = last - first;
    }
    out.push_back(std::move(whole));
  }
  for (std::uint64_t i = last; i < loop.count && partly(i); ++i) {
    clip_into(without_loop(piece, outer, i), dim, begin, end, out);
  }
}

}  // namespace

void redigit(const Piece& piece, const DigitMap& map, std::vector<Piece>& out) { Redigit(map, out).run(piece); }

std::vector<Piece> clip(const Piece& piece, std::size_t dim, std::uint64_t begin, std::uint64_t end) {
  std::vector<Piece> out;
  if (begin < end) clip_into(piece, dim, begin, end, out);
  return out;
}

std::uint64_t Piece::elems() const {
  std::uint64_t product = 1;
  for (const PieceLoop& loop : loops) product *= loop.count;
  return product;
}

}  // namespace lading::mapping
