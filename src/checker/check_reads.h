// What a rank reads from files: that reads are possible, disjoint, and enough for its transfers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "checker/plan_types.h"
#include "lading/result.h"

namespace lading::checker {

/// Bytes of files. Columns of a matrix are one entry, whatever the number of its rows.
class ByteSet {
 public:
  struct Range {
    std::uint32_t file = 0;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  /// Ranges of one length, at equal distances: `first`, and on in steps of `stride`. None ends beyond 2^63.
  struct Comb {
    Range first;
    std::uint64_t count = 1;
    std::uint64_t stride = 0;
  };

  /// In any order, and overlapping as they like; settle() before asking.
  void add(const Comb& comb) { combs_.push_back(comb); }
  void add(const ByteSet& other) { combs_.insert(combs_.end(), other.combs_.begin(), other.combs_.end()); }
  /// Sorts and joins. Gives the first range that overlaps another one, if any does.
  const Range* settle();

  [[nodiscard]] bool contains(Range range) const;
  /// Of the ranges `first`, and on in steps of `stride`: how many from the first on are seen at once to be contained.
  /// 0 only if the first is not; `most` at most.
  [[nodiscard]] std::uint64_t contained_rounds(const Range& first, std::uint64_t stride, std::uint64_t most) const;
  [[nodiscard]] std::uint64_t bytes_within(const Range& range) const;
  [[nodiscard]] std::size_t size() const { return combs_.size(); }

 private:
  using Iterator = std::vector<Comb>::const_iterator;

  [[nodiscard]] Iterator last_from(std::uint32_t file, std::uint64_t begin) const;
  void settle_group(std::vector<Comb>::iterator begin, std::vector<Comb>::iterator end, std::vector<Comb>& out);
  bool join_columns(Iterator begin, Iterator end, std::vector<Comb>& out);
  void join_one_by_one(Iterator begin, Iterator end, std::vector<Comb>& out);
  void note_overlap(const Range& range);

  // When settled: by place; none reaches to where the next one begins or beyond, but that it may end there if one of
  // the two is of several ranges; ranges of one comb do not touch.
  std::vector<Comb> combs_;
  std::optional<Range> overlap_;
};

/// The bytes of the rank's reads; refuses reads beyond a file, of nothing, of a byte twice, a wrong total.
Result<ByteSet, Errors> bytes_read(const Plan& plan, const RankPlan& rank);

/// Whether a transfer finds all its source bytes among those read. The transfer must lie in its source.
bool reads_suffice(const Plan& plan, const Transfer& transfer, const ByteSet& read);

}  // namespace lading::checker
