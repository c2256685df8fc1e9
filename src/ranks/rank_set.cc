#include "ranks/rank_set.h"

#include <fmt/format.h>

#include <algorithm>

namespace lading::ranks {

RankSet::RankSet(const std::vector<std::uint64_t>& ranks) {
  for (const std::uint64_t rank : ranks) add(rank);
}

void RankSet::add(const RankSet& others) {
  for (const Run run : others.runs_) add(run);
}

void RankSet::add(Run run) {
  if (run.begin >= run.end) return;
  // All runs that touch the new one become part of it.
  const auto first = std::find_if(runs_.begin(), runs_.end(), [&](Run other) { return other.end >= run.begin; });
  const auto last = std::find_if(first, runs_.end(), [&](Run other) { return other.begin > run.end; });
  if (first != last) {
    run.begin = std::min(run.begin, first->begin);
    run.end = std::max(run.end, std::prev(last)->end);
  }
  runs_.insert(runs_.erase(first, last), run);
}

std::uint64_t RankSet::size() const {
  std::uint64_t size = 0;
  for (const Run run : runs_) size += run.end - run.begin;
  return size;
}

bool RankSet::contains(std::uint64_t rank) const {
  return std::any_of(runs_.begin(), runs_.end(), [&](Run run) { return run.begin <= rank && rank < run.end; });
}

std::string RankSet::text() const {
  std::string out;
  for (const Run run : runs_) {
    if (!out.empty()) out += ", ";
    out += run.end - run.begin == 1 ? fmt::format("{}", run.begin) : fmt::format("{}-{}", run.begin, run.end - 1);
  }
  return (size() == 1 ? "rank " : "ranks ") + out;
}

}  // namespace lading::ranks
