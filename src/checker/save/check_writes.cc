#include "checker/save/check_writes.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/checked.h"
#include "checker/check_bytes.h"
#include "checker/problem.h"

namespace lading::checker {
namespace {

// One way of writing down a set of pairs of places, whatever the order of its loops was: places in the file and in
// memory, runs that are as long as can be, and the largest steps first.
struct Movement {
  std::uint64_t file = 0;
  std::uint64_t memory = 0;
  std::uint64_t run_elems = 0;
  struct Loop {
    std::uint64_t file_stride = 0;
    std::uint64_t memory_stride = 0;
    std::uint64_t count = 1;
    friend bool operator==(const Loop&, const Loop&) = default;
    friend bool operator<(const Loop& a, const Loop& b) {
      return std::tie(a.file_stride, a.memory_stride, a.count) < std::tie(b.file_stride, b.memory_stride, b.count);
    }
  };
  std::vector<Loop> loops;  // the smallest steps first

  friend bool operator==(const Movement&, const Movement&) = default;
};

struct Widths {
  DType file;
  DType memory;
};

// Nothing on overflow, or where a run does not end at a byte on both sides.
std::optional<Movement> tidied(Movement m, const Widths& widths) {
  std::erase_if(m.loops, [](const Movement::Loop& loop) { return loop.count == 1; });
  std::sort(m.loops.begin(), m.loops.end());
  for (;;) {
    const auto of_file = bytes_of(m.run_elems, widths.file);
    const auto of_memory = bytes_of(m.run_elems, widths.memory);
    if (!of_file || !of_memory) return std::nullopt;
    if (m.loops.empty()) return m;
    const Movement::Loop& least = m.loops.front();
    if (least.file_stride != *of_file || least.memory_stride != *of_memory) break;
    const auto longer = checked_mul(m.run_elems, least.count);
    if (!longer) return std::nullopt;
    m.run_elems = *longer;
    m.loops.erase(m.loops.begin());
  }
  // {3: 20 -> 40} around {5: 4 -> 8} is {15: 4 -> 8}.
  for (std::size_t i = 0; i + 1 < m.loops.size();) {
    Movement::Loop& inner = m.loops[i];
    const Movement::Loop& outer = m.loops[i + 1];
    const auto file = checked_mul(inner.file_stride, inner.count);
    const auto memory = checked_mul(inner.memory_stride, inner.count);
    const auto count = checked_mul(inner.count, outer.count);
    if (!file || !memory || !count) return std::nullopt;
    if (*file == outer.file_stride && *memory == outer.memory_stride) {
      inner.count = *count;
      m.loops.erase(m.loops.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    } else {
      ++i;
    }
  }
  return m;
}

Movement movement_of(const plan::Write& write) {
  Movement m{write.file_begin_bytes, write.memory_begin_bytes, write.run_elems, {}};
  for (const ByteLoop& loop : write.loops) {
    m.loops.push_back({loop.target_stride_bytes, loop.source_stride_bytes, loop.count});
  }
  return m;
}

Movement movement_of(const Transfer& transfer) {
  Movement m{transfer.source_begin_bytes, transfer.target_begin_bytes, transfer.run_elems, {}};
  for (const ByteLoop& loop : transfer.loops) {
    m.loops.push_back({loop.source_stride_bytes, loop.target_stride_bytes, loop.count});
  }
  return m;
}

// Whether one run of `m`, moved on by some rounds of its first `loops` loops, holds so many elements from this place in
// the file on, and has them at this place in memory.
bool holds_run(const Movement& m, std::size_t loops, const Movement& wanted, const Widths& widths) {
  if (wanted.file < m.file || wanted.memory < m.memory) return false;
  if (loops == 0) {
    const auto skipped = elems_in(wanted.file - m.file, widths.file);
    if (!skipped || *skipped > m.run_elems || m.run_elems - *skipped < wanted.run_elems) return false;
    return bytes_of(*skipped, widths.memory) == wanted.memory - m.memory;
  }
  const Movement::Loop& loop = m.loops[loops - 1];
  // As far as this loop can have come without passing the place, and no further back than the rest can make up for.
  std::uint64_t rest = *bytes_of(m.run_elems, widths.file);
  for (std::size_t i = 0; i + 1 < loops; ++i) rest += m.loops[i].file_stride * (m.loops[i].count - 1);
  const std::uint64_t ahead = wanted.file - m.file;
  if (loop.file_stride == 0) return false;
  const std::uint64_t last = std::min(ahead / loop.file_stride, loop.count - 1);
  const std::uint64_t first = ahead < rest ? 0 : (ahead - rest) / loop.file_stride;
  for (std::uint64_t round = first; round <= last; ++round) {
    Movement moved = m;
    moved.file += round * loop.file_stride;
    moved.memory += round * loop.memory_stride;
    if (holds_run(moved, loops - 1, wanted, widths)) return true;
  }
  return false;
}

}  // namespace

std::optional<Error> why_not_turned_round(const plan::Write& write, const Transfer& transfer, const Source& source,
                                          DType storage) {
  const Widths widths{source.dtype, storage};
  const auto wanted = tidied(movement_of(write), widths);
  const auto proved = tidied(movement_of(transfer), widths);
  if (!wanted || !proved) return problem("a write has runs that do not end at bytes", "R69");
  if (*wanted == *proved) return std::nullopt;
  if (wanted->loops.empty() && wanted->run_elems > 0 && holds_run(*proved, proved->loops.size(), *wanted, widths)) {
    return std::nullopt;
  }
  return problem("a write takes other elements than the load would put there", "R69");
}

std::optional<std::vector<ByteRange>> bytes_written(const plan::Write& write, const Source& source) {
  const auto run = bytes_of(write.run_elems, source.dtype);
  if (!run) return std::nullopt;
  std::uint64_t stretch = *run;
  // From the inside: loops that go on where the stretch ends make it longer.
  std::vector<std::pair<std::uint64_t, std::uint64_t>> outer;  // stride and count
  for (const ByteLoop& loop : write.loops) {
    if (loop.count != 1) outer.emplace_back(loop.target_stride_bytes, loop.count);
  }
  std::sort(outer.begin(), outer.end());
  std::size_t taken = 0;
  for (; taken < outer.size() && outer[taken].first == stretch; ++taken) {
    const auto longer = checked_mul(stretch, outer[taken].second);
    if (!longer) return std::nullopt;
    stretch = *longer;
  }
  std::vector<ByteRange> stretches = {{write.file_begin_bytes, 0}};
  for (; taken < outer.size(); ++taken) {
    const auto [stride, count] = outer[taken];
    const std::size_t before = stretches.size();
    for (std::uint64_t round = 1; round < count; ++round) {
      const auto step = checked_mul(stride, round);
      if (!step) return std::nullopt;
      for (std::size_t i = 0; i < before; ++i) {
        const auto begin = checked_add(stretches[i].begin, *step);
        if (!begin) return std::nullopt;
        stretches.push_back({*begin, 0});
      }
    }
    if (count == 0) return std::vector<ByteRange>{};
  }
  for (ByteRange& one : stretches) {
    const auto end = checked_add(one.begin, stretch);
    if (!end) return std::nullopt;
    one.end = *end;
  }
  return stretches;
}

}  // namespace lading::checker
