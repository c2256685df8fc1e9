#include "device/cuda/sample_body.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "device/cast.h"
#include "device/cuda/fill_body.h"
#include "device/move.h"
#include "device/random.h"

namespace lading::device::cuda {
namespace {

constexpr std::byte kNoise{0xA5};

std::vector<SampleParameters> all_kinds() {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<SampleParameters> kinds;
  for (const RandomRecipe& recipe :
       {RandomRecipe{Distribution::kNormal, 0.5, 0, 0, 0}, RandomRecipe{Distribution::kUniform, 0, 1, -0.3, 0.7},
        RandomRecipe{Distribution::kNormal, 0.01, 0.02, 0, 0},
        RandomRecipe{Distribution::kTruncatedNormal, 0, 0.02, -0.04, 0.04},
        RandomRecipe{Distribution::kTruncatedNormal, 0, 1, 4, kInfinity}}) {
    kinds.push_back(prepare_sample(recipe).value());
  }
  return kinds;
}

struct Case {
  DType dtype;
  std::uint64_t first_elem;
  std::size_t elems;
  std::size_t offset_bytes;
  std::uint32_t threads;
};

void expect_as_on_host(const SampleParameters& parameters, const Case& of) {
  const RandomKey key = random_key(17, "layers.0.weight");
  std::vector<float> values(of.elems);
  sample(parameters, key, of.first_elem, values);
  const std::size_t size = of.elems * element_bytes(of.dtype);
  std::vector<std::byte> wanted(of.offset_bytes + size + 16, kNoise);
  if (of.dtype == DType::kF32) {
    std::memcpy(wanted.data() + of.offset_bytes, values.data(), size);
  } else {
    find_cast(DType::kF32, of.dtype)(reinterpret_cast<const std::byte*>(values.data()), wanted.data() + of.offset_bytes,
                                     of.elems);
  }
  std::vector<std::byte> found(wanted.size(), kNoise);
  const SampleJob job = {reinterpret_cast<std::uint64_t>(found.data()) + of.offset_bytes,
                         of.first_elem,
                         of.elems,
                         key.value,
                         static_cast<std::uint32_t>(of.dtype),
                         0,
                         parameters};
  for (std::uint32_t thread = 0; thread < of.threads; ++thread) sample_body(job, {thread, of.threads});
  EXPECT_EQ(found, wanted) << name(of.dtype) << " kind " << static_cast<int>(parameters.kind);
}

TEST(SampleBody, R16_SameBitsAsTheHost) {
  for (const SampleParameters& parameters : all_kinds()) {
    for (const Format& format : kFormats) {
      expect_as_on_host(parameters, {format.dtype, 0, 1000, 0, 64});
      expect_as_on_host(parameters, {format.dtype, 5, 301, 3, 512});
      expect_as_on_host(parameters, {format.dtype, (std::uint64_t{1} << 34) + 2, 77, 1, 3});
      expect_as_on_host(parameters, {format.dtype, 2, 1, 8, 256});
    }
    expect_as_on_host(parameters, {DType::kF32, 12345, 200000, 0, 4096});
  }
}

TEST(FillBody, AsOnTheHost) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 3000; ++i) {
    constexpr std::array kOfWidth = {DType::kU8, DType::kU16, DType::kF32, DType::kF64};
    const DType dtype = kOfWidth[random() % 4];
    const std::uint32_t width = element_bytes(dtype);
    const std::uint64_t elems = random() % 100;
    const std::uint64_t offset = random() % 32;
    const std::uint64_t bits = random() & (~std::uint64_t{0} >> (64 - 8 * width));
    std::vector<std::byte> wanted(offset + elems * width + 16, kNoise);
    std::vector<std::byte> found = wanted;
    fill_on_host({wanted.data() + offset, elems, dtype, bits});
    const FillJob job = {reinterpret_cast<std::uint64_t>(found.data()) + offset, elems, bits, width, 0};
    const std::uint32_t threads = i % 2 == 0 ? 7 : 256;
    for (std::uint32_t thread = 0; thread < threads; ++thread) fill_body(job, {thread, threads});
    ASSERT_EQ(found, wanted) << width << " bytes, " << elems << " elems, offset " << offset;
  }
}

}  // namespace
}  // namespace lading::device::cuda
