#include "checker/check_reads.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "base/checked.h"
#include "checker/check_scales.h"
#include "checker/problem.h"

namespace lading::checker {
namespace {

// More single reads than this on one rank is no plan: at 4 MiB each they would be 64 TiB.
constexpr std::uint64_t kMaxReads = std::uint64_t{1} << 24;

std::uint64_t size_of(const ByteSet::Comb& comb) { return comb.first.end - comb.first.begin; }

std::uint64_t end_of(const ByteSet::Comb& comb) { return comb.first.end + (comb.count - 1) * comb.stride; }

bool by_place(const ByteSet::Comb& a, const ByteSet::Comb& b) {
  return std::tie(a.first.file, a.first.begin, a.first.end) < std::tie(b.first.file, b.first.begin, b.first.end);
}

// How many bytes of the comb lie before a place.
std::uint64_t bytes_before(const ByteSet::Comb& comb, std::uint64_t place) {
  if (place <= comb.first.begin) return 0;
  if (place >= end_of(comb)) return comb.count * size_of(comb);
  const std::uint64_t at = place - comb.first.begin;
  if (comb.count == 1) return at;
  return at / comb.stride * size_of(comb) + std::min(at % comb.stride, size_of(comb));
}

}  // namespace

void ByteSet::settle() {
  if (!std::is_sorted(combs_.begin(), combs_.end(), by_place)) std::sort(combs_.begin(), combs_.end(), by_place);
  std::vector<Comb> settled;
  settled.reserve(combs_.size());
  for (auto begin = combs_.begin(); begin != combs_.end();) {
    std::uint64_t reached = end_of(*begin);
    auto end = begin + 1;
    for (; end != combs_.end() && end->first.file == begin->first.file && end->first.begin < reached; ++end) {
      reached = std::max(reached, end_of(*end));
    }
    settle_group(begin, end, settled);
    begin = end;
  }
  combs_ = std::move(settled);
}

// Combs that reach into each other, or a single one.
void ByteSet::settle_group(std::vector<Comb>::iterator begin, std::vector<Comb>::iterator end, std::vector<Comb>& out) {
  if (!join_columns(begin, end, out)) join_one_by_one(begin, end, out);
}

// Columns of the same rows that lie side by side, or over each other, are one comb again; false: they are not.
bool ByteSet::join_columns(Iterator begin, Iterator end, std::vector<Comb>& out) {
  Comb joined = *begin;
  const std::uint64_t row_end = joined.first.begin + joined.stride;
  const auto fits = [&](const Comb& comb) {
    return comb.count == joined.count &&
           (comb.count == 1 || (comb.stride == joined.stride && comb.first.end <= row_end));
  };
  if (!fits(joined)) return false;
  for (auto comb = begin + 1; comb != end; ++comb) {
    if (!fits(*comb) || comb->first.begin > joined.first.end) return false;
    joined.first.end = std::max(joined.first.end, comb->first.end);
  }
  if (joined.count > 1 && joined.first.end == row_end)
    joined = {{joined.first.file, joined.first.begin, end_of(joined)}};
  const bool continues = joined.count == 1 && !out.empty() && out.back().count == 1 &&
                         out.back().first.file == joined.first.file && out.back().first.end == joined.first.begin;
  if (continues) {
    out.back().first.end = joined.first.end;
  } else {
    out.push_back(joined);
  }
  return true;
}

void ByteSet::join_one_by_one(Iterator begin, Iterator end, std::vector<Comb>& out) {
  std::vector<Comb> ranges;
  for (auto comb = begin; comb != end; ++comb) {
    for (std::uint64_t i = 0; i < comb->count; ++i) {
      const std::uint64_t distance = i * comb->stride;
      ranges.push_back({{comb->first.file, comb->first.begin + distance, comb->first.end + distance}});
    }
  }
  std::sort(ranges.begin(), ranges.end(), by_place);
  for (const Comb& range : ranges) {
    Range* last = out.empty() || out.back().count > 1 ? nullptr : &out.back().first;
    if (last == nullptr || last->file != range.first.file || range.first.begin > last->end) {
      out.push_back(range);
      continue;
    }
    last->end = std::max(last->end, range.first.end);
  }
}

ByteSet::Iterator ByteSet::last_from(FileId file, std::uint64_t begin) const {
  return std::upper_bound(combs_.begin(), combs_.end(), std::pair(file, begin),
                          [](const std::pair<FileId, std::uint64_t>& at, const Comb& comb) {
                            return at < std::pair(comb.first.file, comb.first.begin);
                          });
}

std::uint64_t ByteSet::bytes_within(const Range& range) const {
  auto at = last_from(range.file, range.begin);
  if (at != combs_.begin()) --at;
  std::uint64_t bytes = 0;
  for (; at != combs_.end() && std::pair(at->first.file, at->first.begin) < std::pair(range.file, range.end); ++at) {
    if (at->first.file == range.file) bytes += bytes_before(*at, range.end) - bytes_before(*at, range.begin);
  }
  return bytes;
}

Result<ByteSet, Errors> bytes_read(const Plan& plan, const RankPlan& rank) {
  Errors errors;
  ByteSet read;
  std::optional<std::uint64_t> total = 0;
  std::uint64_t reads = 0;
  for (const Read& one : rank.reads) {
    if (!plan.files.has(one.file)) {
      errors.add(problem("a read names a file that the plan does not have", "R45"));
      continue;
    }
    const PlannedFile& file = plan.files[one.file];
    const auto reach = one.count == 0 ? std::nullopt : checked_mul(one.count - 1, one.stride_bytes);
    const auto last = reach ? checked_add(one.begin_bytes, *reach) : std::nullopt;
    const auto end = last ? checked_add(*last, one.size_bytes) : std::nullopt;
    const bool overlaps = one.count > 1 && one.stride_bytes < one.size_bytes;
    if (one.size_bytes == 0 || !end || *end > file.size_bytes || overlaps) {
      errors.add(
          problem(overlaps ? "the rows of a read overlap" : "a read is empty, or goes beyond the end of the file",
                  "R45")
              .in_file(file.name)
              .at({one.begin_bytes, end.value_or(one.begin_bytes)})
              .wanted(fmt::format("within {} bytes", file.size_bytes)));
      continue;
    }
    const auto size = checked_mul(one.size_bytes, one.count);
    total = total && size ? checked_add(*total, *size) : std::nullopt;
    reads += std::min(one.count, kMaxReads + 1);
    if (reads > kMaxReads) return fail(Errors(problem("the rank makes too many reads to be checked", "R64")));
    read.add({{one.file, one.begin_bytes, one.begin_bytes + one.size_bytes}, one.count, one.stride_bytes});
  }
  for (const ScaleRead& one : rank.scale_reads) {
    // Which bytes they should be is check_scale_reads()'s to say, of ranges that hold.
    const auto scales = scale_bytes(plan, one);
    if (!scales) {
      errors.add(problem("scales are read for a source that has none", "R48"));
      continue;
    }
    for (const ScaleBytes::Part& part : scales->parts) {
      const Source& source = plan.sources[part.source];
      if (!plan.files.has(source.file) || part.bytes.begin >= part.bytes.end || part.bytes.begin < source.bytes.begin ||
          part.bytes.end > source.bytes.end) {
        errors.add(problem("a read of scales is empty, or goes beyond them", "R45").at(part.bytes));
        continue;
      }
      total = total ? checked_add(*total, part.bytes.size_bytes()) : std::nullopt;
      read.add({{source.file, part.bytes.begin, part.bytes.end}, 1, 0});
    }
  }
  if (total != rank.read_bytes) {
    errors.add(problem("the bytes that the rank reads do not add up", "R64")
                   .wanted(total ? std::to_string(*total) : "less than 2^63")
                   .got(std::to_string(rank.read_bytes)));
  }
  if (!errors.empty()) return fail(std::move(errors));
  return read;
}

}  // namespace lading::checker
