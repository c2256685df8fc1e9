#include "checkpoint/arrange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>

namespace lading::checkpoint {
namespace {

TEST(Arrange, EveryOrderOfFew) {
  for (std::uint32_t size = 0; size <= 6; ++size) {
    std::vector<std::uint32_t> order(size);
    std::iota(order.begin(), order.end(), 0);
    do {
      std::vector<std::string> elements;
      for (std::uint32_t i = 0; i < size; ++i) elements.push_back("element " + std::to_string(i));
      std::vector<std::string> expected;
      for (const std::uint32_t i : order) expected.push_back(elements[i]);
      arrange(elements, order);
      EXPECT_EQ(elements, expected);
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST(Arrange, RandomOrdersOfMany) {
  std::mt19937 dice(1);
  std::vector<std::uint32_t> order(1000);
  std::iota(order.begin(), order.end(), 0);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(order.begin(), order.end(), dice);
    std::vector<std::uint32_t> elements(order.size());
    std::iota(elements.begin(), elements.end(), 0);
    arrange(elements, order);
    EXPECT_EQ(elements, order);
  }
}

}  // namespace
}  // namespace lading::checkpoint
