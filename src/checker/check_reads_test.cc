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
  [[nodiscard]] bool has_overlap() const {
    return std::any_of(times_.begin(), times_.end(), [](int times) { return times > 1; });
  }
  [[nodiscard]] std::uint64_t within(std::uint64_t begin, std::uint64_t end) const {
    std::uint64_t count = 0;
    for (std::uint64_t b = begin; b < end; ++b) count += times_[b] > 0 ? 1U : 0U;
    return count;
  }

 private:
  std::vector<int> times_ = std::vector<int>(2 * kFileBytes);
};

Comb random_comb(std::mt19937_64& random, std::uint32_t file) {
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
      const auto file = static_cast<std::uint32_t>(random() % 2);
      const Comb comb = random_comb(random, file);
      set.add(comb);
      bytes[file].add(comb);
    }
    const bool has_overlap = bytes[0].has_overlap() || bytes[1].has_overlap();
    ASSERT_EQ(set.settle() != nullptr, has_overlap) << "round " << round;
    ASSERT_EQ(set.settle(), nullptr) << "round " << round << ": settled twice";
    joined += set.size() < combs ? 1 : 0;
    for (std::uint32_t file = 0; file < 2; ++file) {
      for (std::uint64_t begin = 0; begin < kFileBytes; ++begin) {
        for (std::uint64_t end = begin + 1; end <= kFileBytes; ++end) {
          const std::uint64_t count = bytes[file].within(begin, end);
          ASSERT_EQ(set.bytes_within({file, begin, end}), count) << "round " << round << ": " << begin << ".." << end;
          ASSERT_EQ(set.contains({file, begin, end}), count == end - begin)
              << "round " << round << ": " << begin << ".." << end;
        }
      }
    }
    const Comb wanted = random_comb(random, 0);
    const std::uint64_t rounds = set.contained_rounds(wanted.first, wanted.stride, wanted.count);
    ASSERT_EQ(rounds > 0, set.contains(wanted.first)) << "round " << round;
    ASSERT_LE(rounds, wanted.count);
    for (std::uint64_t i = 0; i < rounds; ++i) {
      const std::uint64_t distance = i * wanted.stride;
      ASSERT_TRUE(set.contains({0, wanted.first.begin + distance, wanted.first.end + distance})) << "round " << round;
    }
  }
  EXPECT_GT(joined, 100);
}

// Column by column a matrix of any number of rows is a few entries, and in the end one range.
TEST(CheckReads, R64_columns_of_all_ranks_join_to_the_matrix) {
  constexpr std::uint64_t kRows = std::uint64_t{1} << 40;
  ByteSet set;
  for (const std::uint64_t column : {2U, 0U, 3U}) set.add({{0, column * 8, column * 8 + 8}, kRows, 32});
  ByteSet two;
  for (const std::uint64_t column : {0U, 1U}) two.add({{0, column * 8, column * 8 + 8}, kRows, 32});
  EXPECT_EQ(two.settle(), nullptr);
  EXPECT_EQ(two.size(), 1U);
  EXPECT_TRUE(two.contains({0, 32 * (kRows - 1), 32 * (kRows - 1) + 16}));
  EXPECT_FALSE(two.contains({0, 32 * (kRows - 1), 32 * (kRows - 1) + 17}));
  EXPECT_EQ(two.contained_rounds({0, 64, 80}, 32, kRows), kRows - 2);
  set.add({{0, 8, 16}, kRows, 32});
  EXPECT_EQ(set.settle(), nullptr);
  EXPECT_EQ(set.size(), 1U);
  EXPECT_TRUE(set.contains({0, 0, 32 * kRows}));
}

}  // namespace
}  // namespace lading::checker
