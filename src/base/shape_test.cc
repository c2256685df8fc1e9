#include "lading/shape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <set>

namespace lading {
namespace {

constexpr std::uint64_t kTwo31 = std::uint64_t{1} << 31;
constexpr std::uint64_t kTwo32 = std::uint64_t{1} << 32;
constexpr std::uint64_t kTwo62 = std::uint64_t{1} << 62;
constexpr std::uint64_t kTwo63 = std::uint64_t{1} << 63;
constexpr std::uint64_t kMax64 = ~std::uint64_t{0};

TEST(Shape, NumElems) {
  EXPECT_EQ(Shape{}.num_elems(), 1U);
  EXPECT_EQ(Shape{0}.num_elems(), 0U);
  EXPECT_EQ((Shape{2, 3, 4}).num_elems(), 24U);
  EXPECT_EQ((Shape{5, 0, 7}).num_elems(), 0U);
  EXPECT_EQ((Shape{1, 1, 1}).num_elems(), 1U);
}

TEST(Shape, S3_NumElemsStaysBelowTwo63) {
  EXPECT_EQ((Shape{kTwo63 - 1}).num_elems(), kTwo63 - 1);
  EXPECT_EQ((Shape{kTwo63}).num_elems(), std::nullopt);
  EXPECT_EQ((Shape{kMax64}).num_elems(), std::nullopt);
  EXPECT_EQ((Shape{kTwo31, kTwo31}).num_elems(), kTwo62);
  EXPECT_EQ((Shape{kTwo31, kTwo32}).num_elems(), std::nullopt);
  EXPECT_EQ((Shape{kTwo32, kTwo32}).num_elems(), std::nullopt) << "2^64 wraps to 0";
  EXPECT_EQ((Shape{kTwo32, kTwo32, 1}).num_elems(), std::nullopt);
}

TEST(Shape, S3_OverflowIsRefusedEvenWhereADimIsZero) {
  EXPECT_EQ((Shape{0, kTwo63}).num_elems(), std::nullopt);
  EXPECT_EQ((Shape{kTwo32, 0, kTwo32}).num_elems(), std::nullopt);
  EXPECT_EQ((Shape{kTwo32, kTwo32, 0}).num_elems(), std::nullopt);
  EXPECT_EQ((Shape{0, kTwo63}).size_bytes(DType::kU8), std::nullopt);
  EXPECT_EQ((Shape{0, kTwo63 - 1}).num_elems(), 0U);
}

TEST(Shape, SizeBytesOfWholeTypes) {
  EXPECT_EQ(Shape{}.size_bytes(DType::kF32), 4U);
  EXPECT_EQ((Shape{3, 5}).size_bytes(DType::kBF16), 30U);
  EXPECT_EQ((Shape{3, 5}).size_bytes(DType::kC64), 120U);
  EXPECT_EQ((Shape{3, 0}).size_bytes(DType::kF64), 0U);
  EXPECT_EQ((Shape{7}).size_bytes(DType::kBool), 7U);
}

TEST(Shape, Fault11_PackedTypesMustEndAtAByte) {
  EXPECT_EQ(Shape{}.size_bytes(DType::kF4), std::nullopt);
  EXPECT_EQ((Shape{2}).size_bytes(DType::kF4), 1U);
  EXPECT_EQ((Shape{3}).size_bytes(DType::kF4), std::nullopt);
  EXPECT_EQ((Shape{3, 2}).size_bytes(DType::kF4), 3U);
  EXPECT_EQ((Shape{0}).size_bytes(DType::kF4), 0U);
  EXPECT_EQ((Shape{2}).size_bytes(DType::kF6E2M3), std::nullopt);
  EXPECT_EQ((Shape{4}).size_bytes(DType::kF6E2M3), 3U);
  EXPECT_EQ((Shape{6}).size_bytes(DType::kF6E3M2), std::nullopt);
  EXPECT_EQ((Shape{8, 3}).size_bytes(DType::kF6E3M2), 18U);
}

TEST(Shape, Fault9_SizeBytesOverflow) {
  EXPECT_EQ((Shape{kTwo63 - 1}).size_bytes(DType::kU8), kTwo63 - 1);
  EXPECT_EQ((Shape{kTwo62}).size_bytes(DType::kF16), std::nullopt);
  EXPECT_EQ((Shape{kTwo62 - 1}).size_bytes(DType::kF16), kTwo63 - 2);
  // The bits overflow 64, the bytes do not.
  EXPECT_EQ((Shape{kTwo62}).size_bytes(DType::kF4), kTwo62 / 2);
  EXPECT_EQ((Shape{kTwo63 - 2}).size_bytes(DType::kF4), kTwo62 - 1);
}

TEST(Shape, SizeBytesAgreesWithCountingBits) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t a = random() % 40;
    const std::uint64_t b = random() % 40;
    const DType dtype = all_dtypes()[random() % all_dtypes().size()];
    const std::uint64_t all_bits = a * b * bits(dtype);
    const auto expected = all_bits % 8 == 0 ? std::optional(all_bits / 8) : std::nullopt;
    ASSERT_EQ((Shape{a, b}).size_bytes(dtype), expected) << name(dtype) << " " << a << " " << b;
  }
}

TEST(Shape, Text) {
  EXPECT_EQ(Shape{}.text(), "[]");
  EXPECT_EQ(Shape{7}.text(), "[7]");
  EXPECT_EQ((Shape{2, 3}).text(), "[2, 3]");
}

TEST(Box, RankZeroHoldsOneElement) {
  const Box box = Box::whole(Shape{});
  EXPECT_EQ(box.rank(), 0U);
  EXPECT_FALSE(box.empty());
  EXPECT_TRUE(box.satisfies_invariants());
  EXPECT_TRUE(box.within(Shape{}));
  EXPECT_FALSE(box.within(Shape{1}));
  EXPECT_EQ(box.extents(), Shape{});
  EXPECT_EQ(intersect(box, box), box);
  EXPECT_FALSE(intersect(box, box).empty());
}

TEST(Box, WholeCoversTheShape) {
  const Box box = Box::whole(Shape{2, 3});
  EXPECT_EQ(box, (Box{{0, 0}, {2, 3}}));
  EXPECT_EQ(box.extents(), (Shape{2, 3}));
  EXPECT_TRUE(box.within(Shape{2, 3}));
  EXPECT_TRUE(Box::whole(Shape{2, 0}).empty());
}

TEST(Box, WithinAtTheEdges) {
  EXPECT_TRUE((Box{{1}, {3}}).within(Shape{3}));
  EXPECT_FALSE((Box{{1}, {4}}).within(Shape{3}));
  EXPECT_TRUE((Box{{3}, {3}}).within(Shape{3}));
  EXPECT_FALSE((Box{{4}, {4}}).within(Shape{3}));
  EXPECT_FALSE((Box{{0}, {2}}).within(Shape{2, 2}));
  EXPECT_FALSE((Box{{0, 0}, {2, 2}}).within(Shape{2}));
  EXPECT_FALSE((Box{{2}, {1}}).within(Shape{3})) << "reversed";
}

TEST(Box, InvariantsNeedOrderAndEqualRanks) {
  EXPECT_TRUE((Box{{1, 2}, {1, 5}}).satisfies_invariants());
  EXPECT_FALSE((Box{{1, 6}, {1, 5}}).satisfies_invariants());
  EXPECT_FALSE((Box{{1}, {1, 5}}).satisfies_invariants());
  EXPECT_FALSE((Box{{1, 2}, {3}}).satisfies_invariants());
}

TEST(BoxDeathTest, IntersectOfDifferentRanksIsOurBug) {
  EXPECT_DEATH(static_cast<void>(intersect(Box{{0}, {1}}, Box{{0, 0}, {1, 1}})), "internal check failed");
}

using Points = std::set<std::vector<std::uint64_t>>;
constexpr std::uint64_t kSide = 6;

// Every element of the box, one by one: straight from the definition.
Points points_of(const Box& box) {
  Points points;
  std::vector<std::uint64_t> index(box.rank(), 0);
  while (true) {
    bool inside = true;
    for (std::size_t d = 0; d < box.rank(); ++d) inside = inside && box.begin[d] <= index[d] && index[d] < box.end[d];
    if (inside) points.insert(index);
    std::size_t d = 0;
    while (d < box.rank() && ++index[d] == kSide) index[d++] = 0;
    if (d == box.rank()) return points;
  }
}

Box random_box(std::mt19937_64& random, std::size_t rank) {
  Box box;
  for (std::size_t d = 0; d < rank; ++d) {
    const std::uint64_t a = random() % (kSide + 1);
    const std::uint64_t b = random() % (kSide + 1);
    box.begin.push_back(std::min(a, b));
    box.end.push_back(std::max(a, b));
  }
  return box;
}

TEST(Box, IntersectAgreesWithBruteForce) {
  std::mt19937_64 random(3);
  int overlapping = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::size_t rank = random() % 4;
    const Box a = random_box(random, rank);
    const Box b = random_box(random, rank);
    const Points in_a = points_of(a);
    const Points in_b = points_of(b);
    Points both;
    std::set_intersection(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(), std::inserter(both, both.end()));
    const Box common = intersect(a, b);
    ASSERT_TRUE(common.satisfies_invariants());
    ASSERT_EQ(points_of(common), both);
    ASSERT_EQ(common.empty(), both.empty());
    ASSERT_EQ(a.empty(), in_a.empty());
    ASSERT_EQ(a.extents().num_elems(), in_a.size());
    ASSERT_EQ(points_of(intersect(b, a)), both);
    overlapping += both.empty() ? 0 : 1;
  }
  EXPECT_GT(overlapping, 500);
  EXPECT_LT(overlapping, 2500);
}

TEST(Box, WithinAgreesWithBruteForce) {
  std::mt19937_64 random(4);
  int contained = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::size_t rank = 1 + random() % 3;
    const Box box = random_box(random, rank);
    std::vector<std::uint64_t> dims;
    for (std::size_t d = 0; d < rank; ++d) dims.push_back(random() % (kSide + 1));
    const Shape shape(dims);
    bool expected = true;
    for (std::size_t d = 0; d < rank; ++d) expected = expected && box.end[d] <= dims[d];
    ASSERT_EQ(box.within(shape), expected);
    if (!expected) continue;
    const Points all = points_of(Box::whole(shape));
    const Points inside = points_of(box);
    ASSERT_TRUE(std::includes(all.begin(), all.end(), inside.begin(), inside.end()));
    ++contained;
  }
  EXPECT_GT(contained, 100);
}

}  // namespace
}  // namespace lading
