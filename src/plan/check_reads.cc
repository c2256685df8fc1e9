#include "plan/check_reads.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "base/checked.h"
#include "plan/check_bytes.h"

namespace lading::plan::check {
namespace {

// More single reads than this on one rank is no plan: at 4 MiB each they would be 64 TiB.
constexpr std::uint64_t kMaxReads = std::uint64_t{1} << 24;

Error problem(std::string message, std::string_view rule) {
  return Error(Code::kPlanCheck, std::move(message)).by_rule(rule);
}

struct Nest {
  std::uint32_t file = 0;
  std::uint64_t run_bytes = 0;
  const ByteSet& read;
};

// Looks at a nest as a whole first, and round by round only where that is too much.
bool covered(const Nest& nest, std::uint64_t begin, std::span<const TransferLoop> loops) {
  std::uint64_t end = begin + nest.run_bytes;
  for (const TransferLoop& loop : loops) end += (loop.count - 1) * loop.source_stride_bytes;
  if (nest.read.contains({nest.file, begin, end})) return true;
  if (loops.empty()) return false;
  for (std::uint64_t i = 0; i < loops.front().count; ++i) {
    if (!covered(nest, begin + i * loops.front().source_stride_bytes, loops.subspan(1))) return false;
  }
  return true;
}

}  // namespace

const ByteSet::Range* ByteSet::settle() {
  const auto by_place = [](const Range& a, const Range& b) {
    return std::tie(a.file, a.begin, a.end) < std::tie(b.file, b.begin, b.end);
  };
  if (!std::is_sorted(ranges_.begin(), ranges_.end(), by_place)) std::sort(ranges_.begin(), ranges_.end(), by_place);
  const Range* overlap = nullptr;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const Range range = ranges_[i];
    if (kept > 0 && ranges_[kept - 1].file == range.file && range.begin <= ranges_[kept - 1].end) {
      if (range.begin < ranges_[kept - 1].end && overlap == nullptr) {
        overlap_ = range;
        overlap = &overlap_;
      }
      ranges_[kept - 1].end = std::max(ranges_[kept - 1].end, range.end);
    } else {
      ranges_[kept++] = range;
    }
  }
  ranges_.resize(kept);
  return overlap;
}

std::vector<ByteSet::Range>::const_iterator ByteSet::last_from(std::uint32_t file, std::uint64_t begin) const {
  return std::upper_bound(ranges_.begin(), ranges_.end(), std::pair(file, begin),
                          [](const std::pair<std::uint32_t, std::uint64_t>& at, const Range& r) {
                            return at < std::pair(r.file, r.begin);
                          });
}

bool ByteSet::contains(const Range& range) const {
  auto after = last_from(range.file, range.begin);
  if (after == ranges_.begin()) return false;
  --after;
  return after->file == range.file && range.end <= after->end;
}

std::uint64_t ByteSet::bytes_within(const Range& range) const {
  auto at = last_from(range.file, range.begin);
  if (at != ranges_.begin()) --at;
  std::uint64_t bytes = 0;
  for (; at != ranges_.end() && std::pair(at->file, at->begin) < std::pair(range.file, range.end); ++at) {
    if (at->file != range.file) continue;
    const std::uint64_t begin = std::max(at->begin, range.begin);
    const std::uint64_t end = std::min(at->end, range.end);
    if (begin < end) bytes += end - begin;
  }
  return bytes;
}

Result<ByteSet, Errors> bytes_read(const Plan& plan, const RankPlan& rank) {
  Errors errors;
  ByteSet read;
  std::optional<std::uint64_t> total = 0;
  std::uint64_t reads = 0;
  for (const Read& one : rank.reads) {
    if (one.file >= plan.files.size()) {
      errors.add(problem("a read names a file that the plan has not", "R45"));
      continue;
    }
    const File& file = plan.files[one.file];
    const auto reach = one.count == 0 ? std::nullopt : checked_mul(one.count - 1, one.stride_bytes);
    const auto last = reach ? checked_add(one.begin_bytes, *reach) : std::nullopt;
    const auto end = last ? checked_add(*last, one.size_bytes) : std::nullopt;
    if (one.size_bytes == 0 || !end || *end > file.size_bytes) {
      errors.add(problem("a read of nothing, or beyond the end of the file", "R45")
                     .in_file(file.name)
                     .at({one.begin_bytes, end.value_or(one.begin_bytes)})
                     .wanted(fmt::format("within {} bytes", file.size_bytes)));
      continue;
    }
    const auto size = checked_mul(one.size_bytes, one.count);
    total = total && size ? checked_add(*total, *size) : std::nullopt;
    reads += std::min(one.count, kMaxReads + 1);
    if (reads > kMaxReads) return fail(Errors(problem("the rank makes too many reads to be checked", "R64")));
    for (std::uint64_t i = 0; i < one.count; ++i) {
      const std::uint64_t begin = one.begin_bytes + i * one.stride_bytes;
      read.add({one.file, begin, begin + one.size_bytes});
    }
  }
  if (total != rank.read_bytes) {
    errors.add(problem("the bytes that the rank reads do not add up", "R64")
                   .wanted(total ? std::to_string(*total) : "less than 2^63")
                   .got(std::to_string(rank.read_bytes)));
  }
  if (const ByteSet::Range* twice = read.settle()) {
    errors.add(problem("bytes of a file are read twice", "R64")
                   .in_file(plan.files[twice->file].name)
                   .at({twice->begin, twice->end}));
  }
  if (!errors.empty()) return fail(std::move(errors));
  return read;
}

bool reads_suffice(const Plan& plan, const Transfer& transfer, const ByteSet& read) {
  if (transfer.is_fill()) return true;
  const Source& source = plan.sources[transfer.source];
  // As transfers lie in their source, none of this overflows.
  const Nest nest{source.file, *bytes_of(transfer.run_elems, source.dtype), read};
  if (transfer.loops.empty()) return covered(nest, transfer.source_begin_bytes, {});
  std::vector<TransferLoop> loops = transfer.loops;
  std::sort(loops.begin(), loops.end(),
            [](const TransferLoop& a, const TransferLoop& b) { return a.source_stride_bytes > b.source_stride_bytes; });
  return covered(nest, transfer.source_begin_bytes, loops);
}

}  // namespace lading::plan::check
