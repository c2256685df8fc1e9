#include "base/index.h"

#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <vector>

namespace lading {
namespace {

using FruitId = Index<struct FruitTag>;
using TreeId = Index<struct TreeTag>;
using Fruits = IndexedVector<FruitId, std::string>;

template <typename Vector, typename Number>
concept CanBeAsked = requires(const Vector& vector, Number number) {
  vector[number];
};

static_assert(CanBeAsked<Fruits, FruitId>);
static_assert(!CanBeAsked<Fruits, TreeId>);
static_assert(!CanBeAsked<Fruits, std::size_t>);
static_assert(!CanBeAsked<std::vector<std::string>, FruitId>);
static_assert(!std::is_convertible_v<std::uint32_t, FruitId> && !std::is_convertible_v<FruitId, std::uint32_t>);
static_assert(!std::is_convertible_v<FruitId, TreeId>);
static_assert(sizeof(FruitId) == 4 && std::is_trivially_copyable_v<FruitId>);

TEST(Index, NoneIsWhatNobodySet) {
  EXPECT_TRUE(FruitId().is_none());
  EXPECT_EQ(FruitId(), FruitId::none());
  EXPECT_FALSE(FruitId(0).is_none());
  EXPECT_LT(FruitId(7), FruitId::none()) << "none comes last";
}

TEST(Index, VectorsAreAskedByTheirOwn) {
  Fruits fruits = {"apple", "pear"};
  EXPECT_EQ(fruits[1], "pear");
  EXPECT_TRUE(fruits.has(1));
  EXPECT_FALSE(fruits.has(2));
  EXPECT_FALSE(fruits.has(FruitId::none()));
  EXPECT_EQ(fruits.id_of(fruits.back()), FruitId(1));
  std::string all;
  for (const FruitId f : fruits.ids()) all += std::to_string(f.number()) + fruits[f] + " ";
  EXPECT_EQ(all, "0apple 1pear ");
}

TEST(Index, VectorsOfBoolWorkToo) {
  IndexedVector<TreeId, bool> is_tall(3, false);
  is_tall[2] = true;
  EXPECT_TRUE(is_tall[2]);
  EXPECT_FALSE(is_tall[0]);
}

}  // namespace
}  // namespace lading
