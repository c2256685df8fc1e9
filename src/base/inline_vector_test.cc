#include "base/inline_vector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace lading {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Small = InlineVector<std::uint64_t, 2>;

TEST(InlineVector, few_elements_lie_in_the_object_and_many_do_not) {
  Small small = {1, 2};
  const auto is_inside = [&] {
    const auto* const begin = reinterpret_cast<const std::byte*>(&small);
    const auto* const data = reinterpret_cast<const std::byte*>(small.data());
    return data >= begin && data < begin + sizeof small;
  };
  EXPECT_TRUE(is_inside());
  small.push_back(3);
  EXPECT_FALSE(is_inside());
  EXPECT_THAT(small, ElementsAre(1, 2, 3));
}

TEST(InlineVector, copies_are_apart_and_what_was_moved_is_empty) {
  for (const std::size_t size : {1U, 2U, 5U}) {
    const Small all(size, 7);
    Small copy = all;
    copy[0] = 8;
    EXPECT_EQ(all[0], 7U);
    Small moved = std::move(copy);
    EXPECT_EQ(moved.size(), size);
    EXPECT_EQ(moved[0], 8U);
    EXPECT_THAT(copy, IsEmpty());  // NOLINT(bugprone-use-after-move): that is what is asked
    copy.push_back(9);
    EXPECT_THAT(copy, ElementsAre(9));  // NOLINT(bugprone-use-after-move)
    moved = all;
    EXPECT_EQ(moved, all);
    moved = Small{4};
    EXPECT_THAT(moved, ElementsAre(4));
  }
}

TEST(InlineVector, is_a_vector_and_becomes_one) {
  const std::vector<std::uint64_t> plain = {3, 1, 2};
  const Small small = plain;
  EXPECT_EQ(small, plain);
  EXPECT_EQ(plain, small);
  EXPECT_NE(small, (std::vector<std::uint64_t>{3, 1}));
  const std::vector<std::uint64_t> back = small;
  EXPECT_EQ(back, plain);
}

// Against std::vector, over all operations and across the border between few and many.
TEST(InlineVector, does_what_a_vector_does) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    Small small;
    std::vector<std::uint64_t> plain;
    for (int step = 0; step < 30; ++step) {
      const std::uint64_t value = random() % 100;
      const auto at = static_cast<std::ptrdiff_t>(random() % (plain.size() + 1));
      switch (random() % 7) {
        case 0:
        case 1: small.push_back(value), plain.push_back(value); break;
        case 2: small.insert(small.begin() + at, value), plain.insert(plain.begin() + at, value); break;
        case 3:
          if (static_cast<std::size_t>(at) < plain.size())
            small.erase(small.begin() + at), plain.erase(plain.begin() + at);
          break;
        case 4:
          if (!plain.empty()) small.pop_back(), plain.pop_back();
          break;
        case 5: small.resize(value % 5), plain.resize(value % 5); break;
        default: small.assign(value % 5, value), plain.assign(value % 5, value); break;
      }
      ASSERT_EQ(small, plain) << "round " << round << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace lading
