// What a rank reads from files: that its reads are possible, that each transfer is in one of them and finds its bytes
// there, and that nothing is read that no transfer takes, small gaps aside.
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
    FileId file = 0;
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
  /// Sorts and joins.
  void settle();

  [[nodiscard]] std::uint64_t bytes_within(const Range& range) const;
  [[nodiscard]] std::size_t size() const { return combs_.size(); }

 private:
  using Iterator = std::vector<Comb>::const_iterator;

  [[nodiscard]] Iterator last_from(FileId file, std::uint64_t begin) const;
  void settle_group(std::vector<Comb>::iterator begin, std::vector<Comb>::iterator end, std::vector<Comb>& out);
  bool join_columns(Iterator begin, Iterator end, std::vector<Comb>& out);
  void join_one_by_one(Iterator begin, Iterator end, std::vector<Comb>& out);

  // When settled: by place; none reaches to where the next one begins or beyond, but that it may end there if one of
  // the two is of several ranges; ranges of one comb do not touch.
  std::vector<Comb> combs_;
};

/// The bytes of the rank's reads; refuses reads beyond a file, of nothing, of rows that overlap, a wrong total.
Result<ByteSet, Errors> bytes_read(const Plan& plan, const RankPlan& rank);

/// That the reads serve the rank's transfers: R11 for bytes that a transfer needs, R64 for bytes that none needs. The
/// transfers must lie in their sources, and bytes_read() must have refused nothing.
Errors check_reads(const Plan& plan, const RankPlan& rank);

}  // namespace lading::checker
