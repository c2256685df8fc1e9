#include "device/cuda/scale_dims.h"

#include <gtest/gtest.h>

#include <random>

#include "device/quantized/quantized_for_tests.h"

namespace lading::device::cuda {
namespace {

TEST(ScaleDims, NeighboursThatAreAsGoodAsOneAreOne) {
  const auto count = [](const Shape& shape, const Shape& block) { return scale_dims(shape, block).size(); };
  EXPECT_EQ(count({}, {}), 0U);
  EXPECT_EQ(count({8, 256, 512}, {8, 256, 512}), 0U);
  EXPECT_EQ(count({8, 256, 512}, {9, 999, 512}), 0U);
  EXPECT_EQ(count({1, 1, 512}, {1, 1, 512}), 0U);
  EXPECT_EQ(count({256, 512}, {128, 128}), 2U);
  EXPECT_EQ(count({256, 512}, {1, 512}), 1U);
  EXPECT_EQ(count({256, 512}, {1, 128}), 1U);
  EXPECT_EQ(count({256, 512}, {1, 100}), 2U);
  EXPECT_EQ(count({8, 256, 512}, {1, 128, 128}), 2U);
  EXPECT_EQ(count({8, 250, 512}, {1, 128, 128}), 3U);
  EXPECT_EQ(count({8, 1, 512}, {1, 1, 128}), 1U);
  EXPECT_EQ(count({5, 5, 5, 5, 5}, {2, 2, 2, 2, 2}), 5U);

  const auto dims = scale_dims({8, 256, 512}, {1, 128, 512});
  ASSERT_EQ(dims.size(), 1U);
  EXPECT_EQ(dims[0].extent, 1048576U);
  EXPECT_EQ(dims[0].block, 65536U);
}

// What a kernel counts, one number after the other, is what the definition says.
TEST(ScaleDims, FindTheScalesOfTheDefinition) {
  quantized::Random random(1);
  for (int i = 0; i < 3000; ++i) {
    BlockScales scales;
    std::uint64_t elems = 1;
    for (std::size_t rank = random() % 6; rank > 0; --rank) {
      const std::uint64_t extent = 1 + random() % 6;
      elems *= extent;
      scales.shape.push_back(extent);
      scales.block.push_back(quantized::one_of(random, {1, 1, 2, 3, extent, 7}));
    }
    const auto dims = scale_dims(scales.shape, scales.block);
    if (dims.size() > kMaxScaleDims) continue;
    const std::uint64_t first = random() % elems;
    DequantizeJob job = {};
    place_dims(dims, {0, 0, sizeof(double), 0, first}, job);
    for (std::uint64_t elem = first; elem < elems; ++elem) {
      std::uint64_t rest = elem - first;
      std::uint64_t address = job.scales;
      for (std::uint32_t d = job.dim_count; d-- > 0;) {
        rest += job.dims[d].first;
        const std::uint64_t index = d != 0 ? rest % job.dims[d].extent : rest;
        address += index / job.dims[d].block * job.dims[d].grid_stride * sizeof(double);
        rest /= job.dims[d].extent;
      }
      ASSERT_EQ(address, sizeof(double) * quantized::scale_number(scales, elem))
          << scales.shape.text() << " in blocks of " << scales.block.text() << " from " << first << " at " << elem;
    }
  }
}

}  // namespace
}  // namespace lading::device::cuda
