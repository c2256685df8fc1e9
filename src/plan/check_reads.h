// What a rank reads from files: that reads are possible, disjoint, and enough for its transfers.
#pragma once

#include <cstdint>
#include <vector>

#include "lading/result.h"
#include "plan/plan.h"

namespace lading::plan::check {

/// Bytes of files as sorted, disjoint ranges, none of which could be joined.
class ByteSet {
 public:
  struct Range {
    std::uint32_t file = 0;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  /// In any order, and overlapping as they like; settle() before asking.
  void add(Range range) { ranges_.push_back(range); }
  void add(const ByteSet& other) { ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end()); }
  /// Sorts and joins. Gives the first range that overlaps another one, if any does.
  const Range* settle();

  [[nodiscard]] bool contains(const Range& range) const;
  [[nodiscard]] std::uint64_t bytes_within(const Range& range) const;
  [[nodiscard]] std::size_t size() const { return ranges_.size(); }

 private:
  [[nodiscard]] std::vector<Range>::const_iterator last_from(std::uint32_t file, std::uint64_t begin) const;

  std::vector<Range> ranges_;
  Range overlap_;
};

/// The bytes of the rank's reads; refuses reads beyond a file, of nothing, of a byte twice, a wrong total.
Result<ByteSet, Errors> bytes_read(const Plan& plan, const RankPlan& rank);

/// Whether a transfer finds all its source bytes among those read. The transfer must lie in its source.
bool reads_suffice(const Plan& plan, const Transfer& transfer, const ByteSet& read);

}  // namespace lading::plan::check
