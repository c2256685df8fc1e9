#include "device/cuda/kernel_images.h"

#include <gtest/gtest.h>

#include <string_view>

#include "device/cuda/kernel_jobs.h"

namespace lading::device::cuda {
namespace {

std::string_view text(const KernelImage& image) {
  return {reinterpret_cast<const char*>(image.bytes.data()), image.bytes.size()};
}

TEST(KernelImages, EachHoldsAllKernels) {
  if (kernel_images().empty()) GTEST_SKIP() << "built without kernels";
  for (const KernelImage& image : kernel_images()) {
    for (const char* kernel : {kMoveKernel, kDequantizeKernel, kDigestKernel, kFillKernel, kSampleKernel}) {
      EXPECT_NE(text(image).find(kernel), std::string_view::npos) << image.sm << " " << kernel;
    }
    EXPECT_EQ(image.bytes.back(), std::byte{0});
  }
}

TEST(KernelImages, PtxIsFirstAndIsText) {
  if (kernel_images().empty()) GTEST_SKIP() << "built without kernels";
  EXPECT_EQ(kernel_images().front().sm, 0U);
  const std::string_view ptx = text(kernel_images().front());
  EXPECT_NE(ptx.find(".target sm_50"), std::string_view::npos);
  EXPECT_EQ(ptx.find('\0'), ptx.size() - 1);
  for (const KernelImage& image : kernel_images().subspan(1)) {
    EXPECT_EQ(text(image).substr(0, 4),
              "\x7f"
              "ELF")
        << image.sm;
  }
}

// clang 14 forgets to take the amount modulo 64; its code for that names a register so.
TEST(KernelImages, PtxHasNoRotationByUnknownAmounts) {
  if (kernel_images().empty()) GTEST_SKIP() << "built without kernels";
  EXPECT_EQ(text(kernel_images().front()).find("%amt2"), std::string_view::npos);
}

TEST(KernelImages, AreSmall) {
  std::size_t all_bytes = 0;
  for (const KernelImage& image : kernel_images()) all_bytes += image.bytes.size();
  EXPECT_LT(all_bytes, std::size_t{9} << 18);
}

// Host and GPU must agree on where fields stand; kernels.cu has the same line.
static_assert(sizeof(MoveJob) == 200 && sizeof(DigestRange) == 32 && sizeof(FillJob) == 32 && sizeof(SampleJob) == 96);
static_assert(sizeof(DequantizeJob) == 504);

}  // namespace
}  // namespace lading::device::cuda
