#include "device/low_rank.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace lading::device {
namespace {

std::vector<float> random_floats(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

struct Sizes {
  std::size_t height, width, rank;
};

// The definition, an element at a time, of the product as rows times columns.
std::vector<float> expected(const Sizes& s, const std::vector<float>& rows, const std::vector<float>& columns,
                            std::vector<float> weight, float scale) {
  for (std::size_t i = 0; i < s.height; ++i) {
    for (std::size_t j = 0; j < s.width; ++j) {
      float sum = 0;
      for (std::size_t k = 0; k < s.rank; ++k) sum = std::fma(rows[i * s.rank + k], columns[k * s.width + j], sum);
      volatile float scaled = sum * scale;  // rounded, not fused with the sum
      weight[i * s.width + j] += scaled;
    }
  }
  return weight;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(LowRank, EveryStretchHasTheBitsOfTheDefinition) {
  for (const Sizes& s : {Sizes{7, 133, 3}, {3, 1, 8}, {1, 300, 1}, {20, 64, 33}, {5, 17, 0}}) {
    const auto rows = random_floats(s.height * s.rank, 1);
    const auto columns = random_floats(s.rank * s.width, 2);
    const auto weight = random_floats(s.height * s.width, 3);
    const auto wanted = expected(s, rows, columns, weight, 1.7F);
    const LowRank factors{rows.data(), s.rank, 1, columns.data(), s.rank, s.width, 1.7F};
    for (const std::size_t step : {std::size_t{1}, std::size_t{10}, std::size_t{95}, weight.size()}) {
      std::vector<float> found = weight;
      for (std::size_t at = 0; at < found.size(); at += step) {
        add_low_rank(factors, at, std::span(found).subspan(at, std::min(step, found.size() - at)));
      }
      EXPECT_TRUE(same(found, wanted)) << s.height << " x " << s.width << ", rank " << s.rank << ", step " << step;
    }
  }
}

TEST(LowRank, RowsMayLieColumnByColumn) {
  const Sizes s{9, 40, 4};
  const auto rows = random_floats(s.height * s.rank, 1);
  const auto columns = random_floats(s.rank * s.width, 2);
  std::vector<float> turned(rows.size());
  for (std::size_t i = 0; i < s.height; ++i) {
    for (std::size_t k = 0; k < s.rank; ++k) turned[k * s.height + i] = rows[i * s.rank + k];
  }
  std::vector<float> found = random_floats(s.height * s.width, 3);
  const auto wanted = expected(s, rows, columns, found, -0.5F);
  add_low_rank({turned.data(), 1, s.height, columns.data(), s.rank, s.width, -0.5F}, 0, found);
  EXPECT_TRUE(same(found, wanted));
}

}  // namespace
}  // namespace lading::device
