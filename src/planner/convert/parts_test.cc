#include "planner/convert/parts.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

namespace lading::planner {
namespace {

model::Skeleton skeleton_with(const std::vector<std::uint64_t>& sizes, DType dtype = DType::kU8) {
  model::Skeleton skeleton;
  for (const std::uint64_t size : sizes) {
    model::Tensor& tensor = skeleton.tensors.emplace_back();
    tensor.name = "t" + std::to_string(1000 + skeleton.tensors.size());
    tensor.shape = Shape{size};
    tensor.dtype = dtype;
  }
  return skeleton;
}

// By rank, without padding: the whole tensor on its owner, or an equal stretch on each rank of its group.
std::map<std::uint64_t, std::uint64_t> bytes_by_rank(const model::Skeleton& skeleton, const layout::Layout& layout) {
  const std::uint64_t parts = layout.mesh.axes()[1].size;
  std::map<std::uint64_t, std::uint64_t> bytes;
  for (const model::Tensor& tensor : skeleton.tensors) {
    const auto& cuts = layout.placement_of(tensor.name).slots.front().cuts;
    const std::uint64_t size = tensor.shape.size_bytes(tensor.dtype).value();
    if (cuts.size() == 1) {
      bytes[cuts.front().owners.front()] += size;
    } else {
      for (std::uint64_t p = 0; p < parts; ++p) {
        bytes[cuts.front().owners.front() * parts + p] += (size + parts - 1) / parts;
      }
    }
  }
  return bytes;
}

TEST(Parts, NoRankHoldsMoreThanAPart) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::uint64_t> sizes(random() % 40);
    for (std::uint64_t& size : sizes) size = random() % (random() % 8 == 0 ? 9000 : 300);
    const model::Skeleton skeleton = skeleton_with(sizes);
    const layout::Layout layout = cut_into_parts(skeleton, 1000);
    EXPECT_TRUE(layout::check_mesh(layout.mesh).empty());
    EXPECT_EQ(layout.rules.size(), sizes.size());
    for (const auto& [rank, bytes] : bytes_by_rank(skeleton, layout)) {
      EXPECT_LT(rank, layout.mesh.ranks()) << "round " << round;
      EXPECT_LE(bytes, 1000U) << "round " << round;
    }
  }
}

TEST(Parts, ASmallModelIsOnePart) {
  EXPECT_EQ(cut_into_parts(skeleton_with({}), 1000).mesh.ranks(), 1U);
  EXPECT_EQ(cut_into_parts(skeleton_with({0, 10, 200}), 1000).mesh.ranks(), 1U);
}

TEST(Parts, PartsGrowWhereThereWouldBeTooMany) {
  const model::Skeleton skeleton = skeleton_with(std::vector<std::uint64_t>(10, std::uint64_t{1} << 40));
  const layout::Layout layout = cut_into_parts(skeleton, std::uint64_t{128} << 20);
  EXPECT_LE(layout.mesh.ranks(), 4096U);
  for (const auto& [rank, bytes] : bytes_by_rank(skeleton, layout)) EXPECT_LE(bytes, std::uint64_t{8} << 30);
}

TEST(Parts, PackedElementsAreNotCut) {
  const model::Skeleton skeleton = skeleton_with({8000, 100}, DType::kF4);
  const layout::Layout layout = cut_into_parts(skeleton, 1000);
  EXPECT_EQ(layout.placement_of("t1001").slots.front().cuts.size(), 1U);
  EXPECT_EQ(bytes_by_rank(skeleton, layout).at(0), 4000U);
}

}  // namespace
}  // namespace lading::planner
