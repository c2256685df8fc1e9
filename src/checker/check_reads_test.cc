#include "checker/check_reads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace lading::checker {
namespace {

using Range = ByteSet::Range;
using Comb = ByteSet::Comb;

constexpr std::uint64_t kFileBytes = 80;

// How often each byte of one file is there.
class Bytes {
 public:
  void add(const Comb& comb) {
    for (std::uint64_t i = 0; i < comb.count; ++i) {
      for (std::uint64_t b = comb.first.begin; b < comb.first.end; ++b) ++times_[b + i * comb.stride];
    }
  }
  [[nodiscard]] std::uint64_t within(std::uint64_t begin, std::uint64_t end) const {
    std::uint64_t count = 0;
    for (std::uint64_t b = begin; b < end; ++b) count += times_[b] > 0 ? 1U : 0U;
    return count;
  }

 private:
  std::vector<int> times_ = std::vector<int>(2 * kFileBytes);
};

Comb random_comb(std::mt19937_64& random, FileId file) {
  const auto below = [&](std::uint64_t n) { return random() % n; };
  const std::uint64_t size = 1 + below(6);
  const std::uint64_t stride = below(4) == 0 ? below(12) : 10;  // mostly such as could be columns of the same rows
  const std::uint64_t count = 1 + below(4);
  const std::uint64_t begin = below(kFileBytes - size - (count - 1) * stride);
  return {{file, begin, begin + size}, count, stride};
}

// Combs of two files, against bytes that are counted one by one.
TEST(CheckReads, R64_a_set_of_combs_is_the_set_of_their_bytes) {
  std::mt19937_64 random(2);
  int joined = 0;
  for (int round = 0; round < 3000; ++round) {
    ByteSet set;
    Bytes bytes[2];
    const std::size_t combs = 1 + random() % 7;
    for (std::size_t i = 0; i < combs; ++i) {
      const FileId file(random() % 2);
      const Comb comb = random_comb(random, file);
      set.add(comb);
      bytes[file.number()].add(comb);
    }
    set.settle();
    joined += set.size() < combs ? 1 : 0;
    for (const FileId file : {FileId(0), FileId(1)}) {
      for (std::uint64_t begin = 0; begin < kFileBytes; ++begin) {
        for (std::uint64_t end = begin + 1; end <= kFileBytes; ++end) {
          const std::uint64_t count = bytes[file.number()].within(begin, end);
          ASSERT_EQ(set.bytes_within({file, begin, end}), count) << "round " << round << ": " << begin << ".." << end;
        }
      }
    }
  }
  EXPECT_GT(joined, 100);
}

// Column by column a matrix of any number of rows is a few entries, and in the end one range.
TEST(CheckReads, R64_columns_of_all_ranks_join_to_the_matrix) {
  constexpr std::uint64_t kRows = std::uint64_t{1} << 40;
  ByteSet set;
  for (const std::uint64_t column : {2U, 0U, 3U}) set.add({{0, column * 8, column * 8 + 8}, kRows, 32});
  set.add({{0, 8, 16}, kRows, 32});
  set.settle();
  EXPECT_EQ(set.size(), 1U);
  EXPECT_EQ(set.bytes_within({0, 0, 32 * kRows}), 32 * kRows);
}

}  // namespace
}  // namespace lading::checker
