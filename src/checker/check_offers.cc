#include "checker/check_offers.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/checked.h"
#include "base/text.h"
#include "checker/check_bytes.h"
#include "checker/problem.h"

namespace lading::checker {
namespace {

// Nests whose loops interleave in the buffer are taken apart; no sane plan needs many parts.
constexpr std::size_t kMaxStreams = std::size_t{1} << 20;

// One past the last byte that a nest touches.
std::optional<std::uint64_t> end_of(std::uint64_t begin, std::uint64_t run_bytes, const std::vector<ByteLoop>& loops,
                                    std::uint64_t ByteLoop::*stride) {
  std::optional<std::uint64_t> end = checked_add(begin, run_bytes);
  for (const ByteLoop& loop : loops) {
    const auto reach = checked_mul(loop.count - 1, loop.*stride);
    end = end && reach ? checked_add(*end, *reach) : std::nullopt;
  }
  return end;
}

}  // namespace

// A merge of odometers. Each transfer becomes a stream that gives its runs by ascending target, and a heap takes the
// lowest of all streams. So one pass over the buffer is enough to compare offers with the demand, and two writers
// of one element show up as a target below the end of the last offer. Memory does not depend on the number of runs,
// except where loops must be taken apart (untangle).
Result<void> Offers::reset(const OfferedTransfers& offered) {
  streams_.clear();
  active_.clear();
  next_ = 0;
  const auto& transfers = offered.transfers;
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    if (i > 0 && transfers[i].target_begin_bytes <= transfers[i - 1].target_begin_bytes) {
      return fail(
          problem("the transfers are not sorted by target", "R11")
              .got(fmt::format("{} after {}", transfers[i].target_begin_bytes, transfers[i - 1].target_begin_bytes)));
    }
    LADING_TRY(add(offered, transfers[i]));
  }
  const auto by_target = [](const Stream& a, const Stream& b) { return a.target < b.target; };
  if (!std::is_sorted(streams_.begin(), streams_.end(), by_target)) {
    std::stable_sort(streams_.begin(), streams_.end(), by_target);
  }
  return {};
}

Result<void> Offers::add(const OfferedTransfers& offered, const Transfer& transfer) {
  const Plan& plan = offered.plan;
  const DType storage = offered.storage;
  if (!transfer.is_fill() && !plan.sources.has(transfer.source)) {
    return fail(problem("a transfer names a source that the plan does not have", "R45"));
  }
  const bool moves_nothing =
      transfer.run_elems == 0 ||
      std::any_of(transfer.loops.begin(), transfer.loops.end(), [](const ByteLoop& loop) { return loop.count == 0; });
  if (moves_nothing) return fail(problem("a transfer moves nothing", "R11"));

  Stream stream;
  const auto run_bytes = bytes_of(transfer.run_elems, storage);
  const auto target_end =
      run_bytes ? end_of(transfer.target_begin_bytes, *run_bytes, transfer.loops, &ByteLoop::target_stride_bytes)
                : std::nullopt;
  if (!target_end || *target_end > offered.buffer_bytes) {
    return fail(problem("a transfer leaves the buffer, or cuts inside a byte", "R11")
                    .wanted(fmt::format("at most {} bytes", offered.buffer_bytes))
                    .got(target_end ? fmt::format("an end at {}", *target_end) : "no whole number of bytes"));
  }
  const auto target = elems_in(transfer.target_begin_bytes, storage);
  if (!target) return fail(problem("a transfer's target begins inside an element", "R11"));
  stream.target = *target;
  stream.origin = {transfer.source, 0, 1, transfer.run_elems, transfer.fill};

  const Source* source = transfer.is_fill() ? nullptr : &plan.sources[transfer.source];
  if (transfer.first_code >= (source == nullptr ? 1 : codes_in_a_byte(*source))) {
    return fail(problem("a transfer begins behind the last code of a byte", "R45")
                    .got(fmt::format("code {}", transfer.first_code)));
  }
  if (source != nullptr) {
    const auto source_bytes = run_bytes_of(transfer, *source);
    const auto end = source_bytes ? end_of(transfer.source_begin_bytes, *source_bytes, transfer.loops,
                                           &ByteLoop::source_stride_bytes)
                                  : std::nullopt;
    if (!end || transfer.source_begin_bytes < source->bytes.begin || *end > source->bytes.end) {
      return fail(problem(fmt::format("a transfer reads outside its source {}", quote(source->key)), "R45")
                      .at({transfer.source_begin_bytes, end.value_or(transfer.source_begin_bytes)})
                      .wanted(fmt::format("within {}..{}", source->bytes.begin, source->bytes.end)));
    }
    const auto begin = elems_in(transfer.source_begin_bytes - source->bytes.begin, source->element_bits());
    if (!begin) return fail(problem("a transfer's source begins inside an element", "R45"));
    stream.origin.begin = *begin + transfer.first_code;
  }
  for (const ByteLoop& loop : transfer.loops) {
    if (loop.count == 1) continue;
    const auto target_step = elems_in(loop.target_stride_bytes, storage);
    const auto source_step = source == nullptr ? std::optional<std::uint64_t>(0)
                                               : elems_in(loop.source_stride_bytes, source->element_bits());
    if (!target_step || !source_step) return fail(problem("a transfer's stride ends inside an element", "R41"));
    stream.levels.push_back({loop.count, *target_step, *source_step, 0});
  }
  return untangle(std::move(stream));
}

// Brings the loops into the order of the buffer, and joins what is contiguous there. An odometer ascends only if every
// loop steps over all that the loops inside it write. Where one does not, its rounds become streams of their own:
//
//   runs of 1 element; 4 times, target step 2; 2 times, target step 3
//     as one odometer    0 2 4 6 | 3 5 7 9      goes back: the inner loop ends at 7, beyond the step of 3
//     as two streams     0 2 4 6   and   3 5 7 9, merged by pull() into 0 2 3 4 5 6 7 9
Result<void> Offers::untangle(Stream stream) {
  auto& levels = stream.levels;
  std::sort(levels.begin(), levels.end(), [](const Level& a, const Level& b) { return a.target_step < b.target_step; });
  Origin& run = stream.origin;
  std::size_t joined = 0;
  for (; joined < levels.size() && levels[joined].target_step == run.count; ++joined) {
    const Level& level = levels[joined];
    if (run.is_fill()) {
      // Equal constants lie side by side.
    } else if (run.count == 1) {  // a single element has no stride yet
      run.stride = level.source_step;
    } else if (level.source_step != run.count * run.stride) {
      break;
    }
    run.count *= level.count;
  }
  levels.erase(levels.begin(), levels.begin() + static_cast<std::ptrdiff_t>(joined));

  std::uint64_t extent = run.count;
  for (std::size_t i = 0; i < levels.size(); ++i) {
    if (levels[i].target_step == 0) return fail(problem("a transfer writes the same bytes again and again", "R11"));
    if (levels[i].target_step < extent) {
      // The loop's rounds reach into one another: each goes its own way, and the merge finds out whether they
      // only interleave.
      const Level tangled = levels[i];
      levels.erase(levels.begin() + static_cast<std::ptrdiff_t>(i));
      if (tangled.count > kMaxStreams || streams_.size() + tangled.count > kMaxStreams) {
        return fail(problem("a transfer's loops are too tangled to be checked", "R11"));
      }
      for (std::uint64_t round = 0; round < tangled.count; ++round) {
        Stream part = stream;
        part.target += round * tangled.target_step;
        part.origin.begin += round * tangled.source_step;
        LADING_TRY(untangle(std::move(part)));
      }
      return {};
    }
    extent += (levels[i].count - 1) * levels[i].target_step;
  }
  streams_.push_back(std::move(stream));
  return {};
}

bool Offers::advance(Stream& stream) {
  for (Level& level : stream.levels) {
    if (++level.done < level.count) {
      stream.target += level.target_step;
      stream.origin.begin += level.source_step;
      return true;
    }
    stream.target -= (level.count - 1) * level.target_step;
    stream.origin.begin -= (level.count - 1) * level.source_step;
    level.done = 0;
  }
  return false;
}

std::uint64_t Offers::pass(const Offer& last, std::uint64_t source_step, std::uint64_t most) {
  if (active_.size() != 1 || active_.front().stream != last_) return 0;
  Stream& stream = streams_[last_];
  if (stream.levels.empty()) return 0;
  Level& level = stream.levels.front();
  const std::uint64_t count = last.origin.count;
  // `done` is 0 right after a carry, when another level has moved too.
  const bool is_alike = level.done > 0 && !stream.origin.is_fill() && stream.origin.count == count &&
                        level.target_step == count && level.source_step == source_step &&
                        stream.target == last.target + count && stream.origin.begin == last.origin.begin + source_step;
  if (!is_alike) return 0;
  std::uint64_t rounds = std::min(most, level.count - level.done);
  if (next_ < streams_.size()) {
    // What the next stream writes comes first from its target on.
    const std::uint64_t its_target = streams_[next_].target;
    if (its_target <= stream.target) return 0;
    rounds = std::min(rounds, (its_target - stream.target - 1) / count + 1);
  }
  if (rounds == 0) return 0;
  // All but one by arithmetic; advance() takes the last, because it knows how to carry.
  level.done += rounds - 1;
  stream.target += (rounds - 1) * level.target_step;
  stream.origin.begin += (rounds - 1) * level.source_step;
  if (advance(stream)) {
    active_.front().target = stream.target;
  } else {
    active_.clear();
  }
  return rounds;
}

bool Offers::pull(Offer& offer) {
  const auto lower = [](const Place& a, const Place& b) { return a.target > b.target; };
  // Streams become active as late as possible. Mostly there is one, which needs no heap, and which pass() can skip in.
  while (next_ < streams_.size() && (active_.empty() || streams_[next_].target <= active_.front().target)) {
    active_.push_back({streams_[next_].target, next_});
    std::push_heap(active_.begin(), active_.end(), lower);
    ++next_;
  }
  if (active_.empty()) return false;
  Place place = active_.front();
  Stream& stream = streams_[place.stream];
  last_ = place.stream;
  offer = {stream.target, stream.origin};
  if (active_.size() == 1) {
    if (advance(stream)) {
      active_.front().target = stream.target;
    } else {
      active_.clear();
    }
    return true;
  }
  std::pop_heap(active_.begin(), active_.end(), lower);
  if (advance(stream)) {
    active_.back().target = stream.target;
    std::push_heap(active_.begin(), active_.end(), lower);
  } else {
    active_.pop_back();
  }
  return true;
}

}  // namespace lading::checker
