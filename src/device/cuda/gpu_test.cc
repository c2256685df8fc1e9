// What a GPU gives, against what the host gives, bit for bit: on a real one where there is one, else on the stand-in
// for the driver. LADING_GPU_CAST_INPUTS says how many random F32 numbers are cast (tools/gpu_check --campaign).
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <numeric>
#include <thread>

#include "device/cast.h"
#include "device/cast_format.h"
#include "device/cuda/dequantize_plan.h"
#include "device/cuda/lane_script_for_tests.h"
#include "device/cuda/scaled_lane_for_tests.h"
#include "device/digest_keys.h"
#include "device/quantized/dequantize.h"
#include "support/gpu.h"

namespace lading::device::cuda {
namespace {

class Gpu : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const std::vector<std::string> gpus = test::gpus();
    // Held for all tests: a context that nobody else has costs a quarter of a second each time.
    if (!gpus.empty()) gpu_ = *open_device(gpus.front());
  }
  static void TearDownTestSuite() { gpu_.reset(); }
  void SetUp() override {
    if (gpu_ == nullptr) GTEST_SKIP() << "no GPU, and no stand-in for the driver";
  }

  static inline std::unique_ptr<Device> gpu_;
};

std::uint64_t cast_inputs() {
  const char* const wanted = std::getenv("LADING_GPU_CAST_INPUTS");
  return wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : std::uint64_t{1} << 18;
}

using Bytes = std::vector<std::byte>;

// All numbers of a format of 8 or 16 bits.
Bytes every_input(const Format& format) {
  const std::size_t width_bytes = format.bits() / 8;
  Bytes bytes((std::size_t{1} << format.bits()) * width_bytes);
  for (std::uint32_t code = 0; code < 1U << format.bits(); ++code) {
    std::memcpy(bytes.data() + code * width_bytes, &code, width_bytes);
  }
  return bytes;
}

Bytes random_input(std::uint64_t elems, std::size_t width_bytes, std::uint64_t seed) {
  Bytes bytes(elems * width_bytes);
  for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const std::uint64_t word = splitmix64(seed, i);
    std::memcpy(bytes.data() + i, &word, 8);
  }
  return bytes;
}

// Casts one buffer's worth, and says how many elements differ from the host's.
std::uint64_t differing(Lane& lane, std::byte* memory, const Bytes& input, DType from, DType to) {
  const std::uint64_t elems = input.size() / (bits(from) / 8);
  Bytes expected(elems * bits(to) / 8);
  find_cast(from, to)(input.data(), expected.data(), elems);
  const auto buffer = lane.acquire_staging_buffer();
  if (!buffer) return elems;
  std::memcpy(buffer->data(), input.data(), input.size());
  Bytes found(expected.size());
  if (!lane.move({buffer->data(), memory, elems, from, to, {}}) || !lane.release_staging_buffer() ||
      !lane.fetch(memory, found)) {
    return elems;
  }
  std::uint64_t count = 0;
  const std::size_t width_bytes = bits(to) / 8;
  for (std::size_t i = 0; i < found.size(); i += width_bytes) {
    if (std::memcmp(found.data() + i, expected.data() + i, width_bytes) != 0) ++count;
  }
  return count;
}

TEST_F(Gpu, CastsEveryNumberOf16BitsAsTheHostDoes) {
  constexpr std::size_t kStagingBytes = 1 << 20;
  const auto lane = gpu_->open_lane({kStagingBytes, 2, nullptr});
  ASSERT_TRUE(lane) << lane.error().text();
  const auto memory = gpu_->allocate(kStagingBytes);
  ASSERT_TRUE(memory) << memory.error().text();
  for (const Format& from : kFormats) {
    const Bytes input = from.bits() <= 16 ? every_input(from) : random_input(1 << 16, from.bits() / 8, 7);
    for (const Format& to : kFormats) {
      if (from.dtype == to.dtype) continue;
      EXPECT_EQ(differing(**lane, memory->get(), input, from.dtype, to.dtype), 0U)
          << name(from.dtype) << " to " << name(to.dtype);
    }
  }
  ASSERT_TRUE((*lane)->finish());
}

TEST_F(Gpu, CastsRandomNumbersOfF32AsTheHostDoes) {
  constexpr std::uint64_t kAtOnce = 1 << 20;
  const std::uint64_t batches = (cast_inputs() + kAtOnce - 1) / kAtOnce;
  std::atomic<std::uint64_t> next = 0;
  std::atomic<std::uint64_t> count = 0;
  {
    std::vector<std::jthread> threads;
    const std::uint64_t wanted = std::min<std::uint64_t>(batches, std::max(1U, std::thread::hardware_concurrency()));
    for (std::uint64_t t = 0; t < wanted; ++t) {
      threads.emplace_back([&] {
        const auto lane = gpu_->open_lane({kAtOnce * 4, 2, nullptr});
        const auto memory = gpu_->allocate(kAtOnce * 8);
        if (!lane || !memory) {
          ++count;
          return;
        }
        for (std::uint64_t batch = next++; batch < batches; batch = next++) {
          const Bytes input = random_input(std::min(kAtOnce, cast_inputs()), 4, batch);
          for (const Format& to : kFormats) {
            if (to.dtype != DType::kF32) count += differing(**lane, memory->get(), input, DType::kF32, to.dtype);
          }
        }
        if (!(*lane)->finish()) ++count;
      });
    }
  }
  EXPECT_EQ(count, 0U);
  RecordProperty("inputs", std::to_string(cast_inputs()));
}

TEST_F(Gpu, SamplesAsTheHostDoes) {
  constexpr std::uint64_t kElems = 1 << 17;
  const auto memory = gpu_->allocate(kElems * 8);
  ASSERT_TRUE(memory) << memory.error().text();
  const auto host = host_device();
  const auto lane = gpu_->open_lane({1 << 20, 1, nullptr});
  const auto host_lane = host->open_lane({1 << 20, 1, nullptr});
  ASSERT_TRUE(lane && host_lane);
  for (const Distribution kind : {Distribution::kUniform, Distribution::kNormal, Distribution::kTruncatedNormal}) {
    const auto parameters = prepare_sample({kind, 0.5, 0.02, -0.03, 0.55});
    ASSERT_TRUE(parameters) << parameters.error().text();
    for (const Format& format : kFormats) {
      const std::uint64_t width_bytes = format.bits() / 8;
      // From an element that is not the first of its four, and beyond 2^32.
      const std::uint64_t first = (std::uint64_t{3} << 32) + 2;
      Bytes expected(kElems * width_bytes);
      Bytes found(expected.size());
      const RandomKey key = random_key(42, "a.weight");
      ASSERT_TRUE((*host_lane)->sample({expected.data(), first, kElems, format.dtype, *parameters, key}));
      ASSERT_TRUE((*lane)->sample({memory->get(), first, kElems, format.dtype, *parameters, key}));
      ASSERT_TRUE((*lane)->fetch(memory->get(), found));
      EXPECT_TRUE(found == expected) << static_cast<int>(kind) << " in " << name(format.dtype);
    }
  }
  ASSERT_TRUE((*lane)->finish());
}

// All payloads times many scales.
TEST_F(Gpu, DequantizesEveryPayloadAsTheHostDoes) {
  quantized::Random random(1);
  constexpr std::uint64_t kScales = 1024;
  const auto lane = gpu_->open_lane({kScales * kPayloads, 2, nullptr});
  const auto memory = gpu_->allocate(kScales * kPayloads * 8);
  ASSERT_TRUE(lane && memory);
  quantized::Made made = quantized::make_whole(random, {kScales, kPayloads}, {1, kPayloads});
  for (std::size_t i = 0; i < made.source.size(); ++i) made.source[i] = static_cast<std::byte>(i % kPayloads);
  const Result<void> taken = gpu_->take_scales(made.scales);
  ASSERT_TRUE(taken) << taken.error().text();
  for (const DType from : quantized::kPayloadTypes) {
    for (const DType to : quantized::kResultTypes) {
      made.from = from;
      made.to = to;
      Bytes expected(made.source.size() * bits(to) / 8);
      Bytes found(expected.size());
      dequantize_on_host(quantized::MadeMove(made, made.source.data(), expected.data()).get());
      const auto buffer = (*lane)->acquire_staging_buffer();
      ASSERT_TRUE(buffer) << buffer.error().text();
      std::copy(made.source.begin(), made.source.end(), buffer->begin());
      ASSERT_TRUE((*lane)->move(quantized::MadeMove(made, buffer->data(), memory->get()).get()));
      ASSERT_TRUE((*lane)->release_staging_buffer());
      ASSERT_TRUE((*lane)->fetch(memory->get(), found));
      EXPECT_TRUE(found == expected) << name(from) << " to " << name(to);
    }
  }
  ASSERT_TRUE((*lane)->finish());
}

// All codes, with zero points, times many scales; and, of F4, divided by the scale of the tensor.
TEST_F(Gpu, DequantizesEveryCodeAsTheHostDoes) {
  quantized::Random random(2);
  constexpr std::uint64_t kScales = 1024;
  const auto lane = gpu_->open_lane({kScales * kPayloads, 2, nullptr});
  const auto memory = gpu_->allocate(kScales * kPayloads * 8);
  ASSERT_TRUE(lane && memory);
  std::deque<quantized::Made> all;
  for (const CodeType code : quantized::kCodeTypes) {
    for (const DType scale_dtype : quantized::kScaleTypes) {
      quantized::Made& made =
          all.emplace_back(quantized::make_whole(random, {kScales, kPayloads}, {1, kPayloads / 4}, code));
      for (std::size_t i = 0; i < made.source.size(); ++i) made.source[i] = static_cast<std::byte>(i % kPayloads);
      made.scales.dtype = scale_dtype;
      quantized::make_scales(random, 4 * kScales, made.scales);
      if (code == CodeType::kF4) {
        made.scales.tensor_scale = quantized::make_tensor_scale(random);
        made.scales.tensor_scale_is = TensorScale::kDivisor;
      } else {
        made.scales.zeros.resize(4 * kScales);
        for (std::byte& zero : made.scales.zeros) zero = static_cast<std::byte>(random() % (1U << bits(code)));
      }
      const Result<void> taken = gpu_->take_scales(made.scales);
      ASSERT_TRUE(taken) << taken.error().text();
    }
  }
  for (quantized::Made& made : all) {
    for (const DType to : quantized::kResultTypes) {
      made.to = to;
      Bytes expected(made.run_elems * bits(to) / 8);
      Bytes found(expected.size());
      dequantize_on_host(quantized::MadeMove(made, made.source.data(), expected.data()).get());
      const auto buffer = (*lane)->acquire_staging_buffer();
      ASSERT_TRUE(buffer) << buffer.error().text();
      std::copy(made.source.begin(), made.source.end(), buffer->begin());
      ASSERT_TRUE((*lane)->move(quantized::MadeMove(made, buffer->data(), memory->get()).get()));
      ASSERT_TRUE((*lane)->release_staging_buffer());
      ASSERT_TRUE((*lane)->fetch(memory->get(), found));
      EXPECT_TRUE(found == expected) << quantized::text(made);
    }
  }
  ASSERT_TRUE((*lane)->finish());
}

TEST_F(Gpu, DequantizesAsTheHostDoes) {
  const auto host = host_device();
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const LaneOptions options{(seed % 2 == 0 ? 16 : 60) * std::size_t{4096}, 1 + seed % 3, nullptr};
    const auto found = dequantize_on(*gpu_, seed, options);
    const auto expected = dequantize_on(*host, seed, options);
    ASSERT_TRUE(found) << found.error().text();
    ASSERT_TRUE(expected) << expected.error().text();
    EXPECT_TRUE(*found == *expected) << "seed " << seed;
  }
}

TEST_F(Gpu, LanesDoWhatTheHostsDo) {
  const auto host = host_device();
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const std::size_t staging_buffer_bytes = seed % 4 == 0 ? 1 << 18 : 4096 * (1 + seed % 3);
    LaneScript script{seed, staging_buffer_bytes};
    script.with_digests = false;
    const auto found = run_script(*gpu_, script, {staging_buffer_bytes, 1 + seed % 4, nullptr});
    const auto expected = run_script(*host, script, {staging_buffer_bytes, 1, nullptr});
    ASSERT_TRUE(found) << found.error().text();
    ASSERT_TRUE(expected);
    EXPECT_TRUE(found->memory == expected->memory) << "seed " << seed;
    EXPECT_TRUE(found->fetched == expected->fetched) << "seed " << seed;
  }
}

}  // namespace
}  // namespace lading::device::cuda
