// RankSet: which ranks, as runs; a thousand ranks that say the same take a few bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lading::ranks {

class RankSet {
 public:
  struct Run {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;  ///< one past the last
    friend bool operator==(const Run&, const Run&) = default;
  };

  RankSet() = default;
  explicit RankSet(std::uint64_t rank) : runs_{{rank, rank + 1}} {}
  explicit RankSet(const std::vector<std::uint64_t>& ranks);

  void add(std::uint64_t rank) { add(Run{rank, rank + 1}); }
  void add(const RankSet& others);
  void add(Run run);

  [[nodiscard]] bool empty() const { return runs_.empty(); }
  [[nodiscard]] std::uint64_t size() const;
  [[nodiscard]] std::uint64_t first() const { return runs_.front().begin; }
  [[nodiscard]] bool contains(std::uint64_t rank) const;
  [[nodiscard]] const std::vector<Run>& runs() const { return runs_; }

  /// "rank 3", "ranks 0-3, 7"
  [[nodiscard]] std::string text() const;

  friend bool operator==(const RankSet&, const RankSet&) = default;

 private:
  std::vector<Run> runs_;  // sorted, apart from each other, none empty
};

}  // namespace lading::ranks
