// Lanes of a GPU against lanes of the host, byte for byte, on the stand-in for the driver (tests/cuda_shim), which
// reads pinned memory late and forgives nothing. Faults: cuda_faults_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "cuda_shim/control.h"
#include "device/cuda/driver.h"
#include "device/cuda/lane_script_for_tests.h"
#include "device/cuda/scaled_lane_for_tests.h"
#include "device/device.h"

namespace lading::device::cuda {
namespace {

using cuda_shim::Faults;
using cuda_shim::Shim;
using testing::HasSubstr;

constexpr std::size_t kPageBytes = 4096;

class CudaDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_not_on_shim(); !why.empty()) GTEST_SKIP() << why;
  }
};

/// The same script on both, and whether they agree.
void expect_same(Device& gpu, Device& host, const LaneScript& script, const LaneOptions& options) {
  DigestAccounts of_gpu(LaneScript::kAccounts);
  DigestAccounts of_host(LaneScript::kAccounts);
  LaneOptions with_accounts = options;
  with_accounts.accounts = &of_gpu;
  const Result<ScriptOutcome> found = run_script(gpu, script, with_accounts);
  ASSERT_TRUE(found) << found.error().text();
  with_accounts.accounts = &of_host;
  const Result<ScriptOutcome> expected = run_script(host, script, with_accounts);
  ASSERT_TRUE(expected) << expected.error().text();
  EXPECT_EQ(found->memory, expected->memory) << "seed " << script.seed;
  EXPECT_EQ(found->fetched, expected->fetched) << "seed " << script.seed;
  const Result<void> collected = gpu.collect_digests();
  ASSERT_TRUE(collected) << collected.error().text();
  for (std::size_t i = 0; i < of_host.count(); ++i) {
    EXPECT_EQ(of_gpu.of(i), of_host.of(i)) << "seed " << script.seed << ", account " << i;
  }
}

TEST_F(CudaDevice, DoesWhatTheHostDoes) {
  const auto host = host_device();
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    const Shim shim(LADING_CUDA_SHIM_PATH, "seed=" + std::to_string(seed));
    {
      const auto gpu = open_device("cuda:0");
      ASSERT_TRUE(gpu) << gpu.error().text();
      // Small buffers are turned often; in large ones are moves that go without a kernel.
      const std::size_t staging_buffer_bytes = seed % 4 == 0 ? 64 * kPageBytes : (1 + seed % 3) * kPageBytes;
      expect_same(**gpu, *host, LaneScript{seed, staging_buffer_bytes}, {staging_buffer_bytes, 1 + seed % 4, nullptr});
    }
    ASSERT_EQ(shim.faults(), Faults()) << shim.report();
    if (HasFailure()) return;
  }
}

TEST_F(CudaDevice, DequantizesWhatTheHostDequantizes) {
  const auto host = host_device();
  int without_twins = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    // Room for the destination and for one chunk of scales, if they fit into one; but for no twin of a buffer.
    const std::string little = seed % 3 == 0 ? ",memory=" + std::to_string(kScaledBytes + (2 << 20) + 16384) : "";
    const Shim shim(LADING_CUDA_SHIM_PATH, "seed=" + std::to_string(seed) + little);
    const LaneOptions options{(seed % 2 == 0 ? 16 : 60) * kPageBytes, 1 + seed % 3, nullptr};
    {
      const auto gpu = open_device("cuda:0");
      ASSERT_TRUE(gpu) << gpu.error().text();
      const auto found = dequantize_on(**gpu, seed, options);
      if (!found && !little.empty() && found.error().code == Code::kDeviceMemory) continue;
      const auto expected = dequantize_on(*host, seed, options);
      ASSERT_TRUE(found) << found.error().text();
      ASSERT_TRUE(expected) << expected.error().text();
      EXPECT_TRUE(*found == *expected) << "seed " << seed;
      if (!(*gpu)->take_notes().empty()) ++without_twins;
    }
    ASSERT_EQ(shim.faults(), Faults()) << shim.report();
    if (HasFailure()) return;
  }
  EXPECT_GT(without_twins, 5);
}

TEST_F(CudaDevice, StagingBuffersNeedNotBePages) {
  const auto host = host_device();
  for (const std::size_t staging_buffer_bytes : {std::size_t{64}, std::size_t{1000}, kPageBytes + 512}) {
    const Shim shim(LADING_CUDA_SHIM_PATH, "");
    {
      const auto gpu = open_device("cuda:0");
      ASSERT_TRUE(gpu) << gpu.error().text();
      expect_same(**gpu, *host, LaneScript{staging_buffer_bytes, staging_buffer_bytes},
                  {staging_buffer_bytes, 3, nullptr});
    }
    EXPECT_EQ(shim.faults(), Faults()) << shim.report();
  }
}

TEST_F(CudaDevice, LanesOfThreadsDoNotDisturbEachOther) {
  const Shim shim(LADING_CUDA_SHIM_PATH, "gpus=2,delay=300");
  const auto host = host_device();
  {
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        const auto gpu = open_device(t % 2 == 0 ? "cuda:0" : "cuda:1");
        ASSERT_TRUE(gpu) << gpu.error().text();
        for (std::uint64_t i = 0; i < 5; ++i) {
          // Accounts are the device's: without them here, since lanes of several loads would share them.
          LaneScript script{1000 + 10 * t + i, 2 * kPageBytes};
          script.with_digests = false;
          const LaneOptions options{2 * kPageBytes, 2, nullptr};
          const Result<ScriptOutcome> found = run_script(**gpu, script, options);
          const Result<ScriptOutcome> expected = run_script(*host, script, options);
          ASSERT_TRUE(found) << found.error().text();
          EXPECT_EQ(found->memory, expected->memory) << script.seed;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(shim.faults(), Faults()) << shim.report();
}

TEST_F(CudaDevice, LanesOfOneDeviceAddUpTheirDigests) {
  const Shim shim(LADING_CUDA_SHIM_PATH, "delay=300");
  DigestAccounts accounts(1);
  constexpr std::size_t kSizeBytes = 100000;
  {
    const auto gpu = open_device("cuda:0");
    ASSERT_TRUE(gpu) << gpu.error().text();
    const auto memory = (*gpu)->allocate(kSizeBytes);
    ASSERT_TRUE(memory);
    std::vector<std::unique_ptr<Lane>> lanes;
    for (int i = 0; i < 3; ++i) lanes.push_back(*(*gpu)->open_lane({kPageBytes, 1, &accounts}));
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < 3; ++i) {
      threads.emplace_back([&, i] {
        const std::size_t begin = i * 30000;
        const std::size_t size_bytes = i == 2 ? kSizeBytes - begin : 30000;
        std::byte* const target = memory->get() + begin;
        EXPECT_TRUE(lanes[i]->fill({target, size_bytes, DType::kU8, 0x5A}));
        EXPECT_TRUE(lanes[i]->digest({target, size_bytes, begin, 0}));
        EXPECT_TRUE(lanes[i]->finish());
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE((*gpu)->collect_digests());
  }
  EXPECT_EQ(accounts.of(0), digest_of(std::vector<std::byte>(kSizeBytes, std::byte{0x5A}), 0));
  EXPECT_EQ(shim.faults(), Faults()) << shim.report();
}

TEST_F(CudaDevice, ListsOfJobsStayUntilTheyWereRead) {
  const Shim shim(LADING_CUDA_SHIM_PATH, "slow=3");
  constexpr std::size_t kBuffers = 4;
  {
    const auto gpu = open_device("cuda:0");
    ASSERT_TRUE(gpu) << gpu.error().text();
    const auto memory = (*gpu)->allocate(kBuffers * kPageBytes);
    const auto lane = (*gpu)->open_lane({kPageBytes, kBuffers, nullptr});
    ASSERT_TRUE(memory && lane);
    // Byte by byte and backwards: more jobs than there is room for at once.
    for (std::size_t i = 0; i < kBuffers; ++i) {
      const auto buffer = (*lane)->acquire_staging_buffer();
      ASSERT_TRUE(buffer);
      for (std::size_t b = 0; b < kPageBytes; ++b) (*buffer)[b] = static_cast<std::byte>(b % 251);
      std::byte* const end = memory->get() + (i + 1) * kPageBytes;
      for (std::size_t b = 0; b < kPageBytes; ++b) {
        ASSERT_TRUE((*lane)->move({buffer->data() + b, end - 1 - b, 1, DType::kU8, DType::kU8, {}}));
      }
      ASSERT_TRUE((*lane)->release_staging_buffer());
    }
    ASSERT_TRUE((*lane)->finish());
    std::vector<std::byte> found(kBuffers * kPageBytes);
    ASSERT_TRUE(shim.peek(memory->get(), found.data(), found.size()));
    for (std::size_t i = 0; i < found.size(); ++i) {
      const std::size_t b = kPageBytes - 1 - i % kPageBytes;
      ASSERT_EQ(found[i], static_cast<std::byte>(b % 251)) << i;
    }
  }
  EXPECT_EQ(shim.faults(), Faults()) << shim.report();
}

TEST_F(CudaDevice, ALaneThatIsDroppedWaitsForItsWork) {
  const Shim shim(LADING_CUDA_SHIM_PATH, "slow=5");
  {
    const auto gpu = open_device("cuda:0");
    ASSERT_TRUE(gpu) << gpu.error().text();
    const auto memory = (*gpu)->allocate(100000);
    auto lane = (*gpu)->open_lane({100000, 2, nullptr});
    ASSERT_TRUE(memory && lane);
    const auto buffer = (*lane)->acquire_staging_buffer();
    ASSERT_TRUE(buffer);
    ASSERT_TRUE((*lane)->move({buffer->data(), memory->get(), 100000, DType::kU8, DType::kU8, {}}));
    lane->reset();
  }
  EXPECT_EQ(shim.faults(), Faults()) << shim.report();
}

TEST_F(CudaDevice, R34_MemoryIsWhereItIsAskedFor) {
  const Shim shim(LADING_CUDA_SHIM_PATH, "gpus=3");
  {
    const auto gpu = open_device("cuda:1");
    ASSERT_TRUE(gpu) << gpu.error().text();
    EXPECT_EQ((*gpu)->name(), "cuda:1");
    const auto memory = (*gpu)->allocate(1000);
    ASSERT_TRUE(memory);
    EXPECT_EQ(shim.gpu_of(memory->get()), 1);
    const auto lane = (*gpu)->open_lane({kPageBytes, 1, nullptr});
    ASSERT_TRUE(lane);
    EXPECT_TRUE((*lane)->fill({memory->get(), 1000, DType::kU8, 7}));
    EXPECT_TRUE((*lane)->finish());
    EXPECT_TRUE((*gpu)->check({memory->get(), 1000}));
    std::vector<std::byte> found(1000);
    ASSERT_TRUE(shim.peek(memory->get(), found.data(), found.size()));
    EXPECT_EQ(found, std::vector<std::byte>(1000, std::byte{7}));

    const auto other = open_device("cuda:2");
    ASSERT_TRUE(other);
    const Result<void> refused = (*other)->check({memory->get(), 1000});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().rule, "R34");
    EXPECT_THAT(refused.error().text(), HasSubstr("cuda:1"));
    EXPECT_FALSE((*gpu)->check(found));
  }
  EXPECT_EQ(shim.faults(), Faults()) << shim.report();
}

TEST_F(CudaDevice, MemoryOutlivesTheDeviceThatGaveIt) {
  const Shim shim(LADING_CUDA_SHIM_PATH, "");
  std::shared_ptr<std::byte> memory;
  {
    const auto gpu = open_device("cuda:0");
    ASSERT_TRUE(gpu) << gpu.error().text();
    memory = *(*gpu)->allocate(1000);
  }
  EXPECT_EQ(shim.gpu_of(memory.get()), 0);
  memory = nullptr;
  EXPECT_EQ(shim.faults(), Faults()) << shim.report();
}

TEST_F(CudaDevice, TheCallersContextStaysCurrent) {
  const Shim shim(LADING_CUDA_SHIM_PATH, "gpus=2");
  const Result<Driver> driver = Driver::find();
  ASSERT_TRUE(driver) << driver.error().text();
  Context theirs = nullptr;
  ASSERT_EQ(driver->retain_context(&theirs, 1), kSuccess);
  ASSERT_EQ(driver->push_context(theirs), kSuccess);
  {
    const auto gpu = open_device("cuda:0");
    ASSERT_TRUE(gpu) << gpu.error().text();
    EXPECT_TRUE(run_script(**gpu, LaneScript{1, kPageBytes}, {kPageBytes, 2, nullptr}));
  }
  Context current = nullptr;
  EXPECT_EQ(driver->pop_context(&current), kSuccess);
  EXPECT_EQ(current, theirs);
  EXPECT_EQ(driver->release_context(1), kSuccess);
  EXPECT_EQ(shim.faults(), Faults()) << shim.report();
}

}  // namespace
}  // namespace lading::device::cuda
