// The stand-in itself: what it is strict about, each shown once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <memory>
#include <span>

#include "cuda_shim/control.h"
#include "device/cuda/driver.h"
#include "device/cuda/kernel_jobs.h"
#include "device/digest.h"

namespace lading::cuda_shim {
namespace {

using namespace device::cuda;  // the driver is what is tested
using testing::HasSubstr;

constexpr std::size_t kPageBytes = 4096;
constexpr char kImage[] = ".version 7.0\n.target sm_70\n";

class CudaShimTest : public testing::Test {
 protected:
  void begin(const std::string& text) {
    shim_ = std::make_unique<Shim>(LADING_CUDA_SHIM_PATH, text);
    Result<Driver> driver = Driver::find();
    ASSERT_TRUE(driver) << driver.error().message;
    cuda_ = *driver;
    ASSERT_EQ(cuda_.retain_context(&context_, 0), kSuccess);
    ASSERT_EQ(cuda_.push_context(context_), kSuccess);
    ASSERT_EQ(cuda_.create_stream(&stream_, kStreamNonBlocking), kSuccess);
  }

  void end() {
    EXPECT_EQ(cuda_.destroy_stream(stream_), kSuccess);
    Context popped = nullptr;
    EXPECT_EQ(cuda_.pop_context(&popped), kSuccess);
    EXPECT_EQ(popped, context_);
    EXPECT_EQ(cuda_.release_context(0), kSuccess);
  }

  [[nodiscard]] std::vector<std::byte> peek(Address address, std::size_t size_bytes) const {
    std::vector<std::byte> bytes(size_bytes);
    EXPECT_TRUE(shim_->peek(reinterpret_cast<const std::byte*>(address), bytes.data(), size_bytes));
    return bytes;
  }

  std::unique_ptr<Shim> shim_;
  Driver cuda_;
  Context context_ = nullptr;
  Stream stream_ = nullptr;
};

/// Pages of the host, as a ring of staging buffers has them.
struct HostPages {
  explicit HostPages(std::size_t size) : size_bytes(size) {
    void* const mapped = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bytes = static_cast<std::byte*>(mapped);
  }
  HostPages(const HostPages&) = delete;
  HostPages& operator=(const HostPages&) = delete;
  ~HostPages() { ::munmap(bytes, size_bytes); }
  void fill(int value) const { std::memset(bytes, value, size_bytes); }

  std::byte* bytes = nullptr;
  std::size_t size_bytes;
};

TEST_F(CudaShimTest, ExportsWhatLadingCalls) {
  const Shim shim(LADING_CUDA_SHIM_PATH, "");
#define LADING_EXPECT_SYMBOL(member, symbol, ...) EXPECT_NE(shim.find<void*>(symbol), nullptr) << (symbol);
  LADING_CUDA_FUNCTIONS(LADING_EXPECT_SYMBOL)
#undef LADING_EXPECT_SYMBOL
  const Shim old(LADING_CUDA_SHIM_OLD_PATH, "");
  EXPECT_EQ(old.find<void*>("cuMemcpy2DAsync_v2"), nullptr);
  EXPECT_NE(old.find<void*>("cuMemcpyHtoDAsync_v2"), nullptr);
}

TEST_F(CudaShimTest, PinnedMemoryIsReadLateAndPageableMemoryAtOnce) {
  begin("hang=1");
  HostPages pinned(kPageBytes);
  HostPages pageable(kPageBytes);
  Address target = 0;
  ASSERT_EQ(cuda_.allocate(&target, 3 * kPageBytes), kSuccess);
  ASSERT_EQ(cuda_.register_host(pinned.bytes, kPageBytes, kRegisterPortable), kSuccess);
  pinned.fill(1);
  pageable.fill(1);
  ASSERT_EQ(cuda_.copy_to_device(target, pinned.bytes, kPageBytes, stream_), kSuccess);
  ASSERT_EQ(cuda_.copy_to_device(target + kPageBytes, pageable.bytes, kPageBytes, stream_), kSuccess);
  EXPECT_EQ(peek(target, 1)[0], std::byte{0xCD});
  pinned.fill(2);
  pageable.fill(2);
  shim_->let_go();
  ASSERT_EQ(cuda_.synchronize_stream(stream_), kSuccess);
  const std::vector<std::byte> found = peek(target, 3 * kPageBytes);
  EXPECT_EQ(found[0], std::byte{2});
  EXPECT_EQ(found[kPageBytes], std::byte{1});
  EXPECT_EQ(found[2 * kPageBytes], std::byte{0xCD});
  EXPECT_EQ(cuda_.unregister_host(pinned.bytes), kSuccess);
  EXPECT_EQ(cuda_.free(target), kSuccess);
  end();
  EXPECT_EQ(shim_->faults(), Faults()) << shim_->report();
}

TEST_F(CudaShimTest, EventsWaitForWhatWasIssuedBefore) {
  begin("delay=1000");
  HostPages pinned(kPageBytes);
  Address target = 0;
  Event event = nullptr;
  ASSERT_EQ(cuda_.allocate(&target, kPageBytes), kSuccess);
  ASSERT_EQ(cuda_.register_host(pinned.bytes, kPageBytes, kRegisterPortable), kSuccess);
  ASSERT_EQ(cuda_.create_event(&event, kEventWithoutTiming), kSuccess);
  EXPECT_EQ(cuda_.synchronize_event(event), kSuccess);
  for (int i = 0; i < 50; ++i) {
    pinned.fill(i);
    ASSERT_EQ(cuda_.copy_to_device(target, pinned.bytes, kPageBytes, stream_), kSuccess);
    ASSERT_EQ(cuda_.record_event(event, stream_), kSuccess);
    ASSERT_EQ(cuda_.synchronize_event(event), kSuccess);
    EXPECT_EQ(peek(target, 1)[0], std::byte(i));
  }
  EXPECT_EQ(cuda_.destroy_event(event), kSuccess);
  EXPECT_EQ(cuda_.unregister_host(pinned.bytes), kSuccess);
  EXPECT_EQ(cuda_.free(target), kSuccess);
  end();
  EXPECT_EQ(shim_->faults(), Faults()) << shim_->report();
}

TEST_F(CudaShimTest, TheHostMayNotTouchDeviceMemory) {
  begin("");
  Address address = 0;
  ASSERT_EQ(cuda_.allocate(&address, 100), kSuccess);
  testing::FLAGS_gtest_death_test_style = "fast";
  EXPECT_DEATH(*reinterpret_cast<volatile char*>(address) = 1, "");
  EXPECT_EQ(cuda_.free(address), kSuccess);
  end();
}

TEST_F(CudaShimTest, AnAddressOfAnotherGpuIsTheEnd) {
  begin("gpus=2");
  Context other = nullptr;
  Address address = 0;
  ASSERT_EQ(cuda_.retain_context(&other, 1), kSuccess);
  ASSERT_EQ(cuda_.push_context(other), kSuccess);
  ASSERT_EQ(cuda_.allocate(&address, 100), kSuccess);
  EXPECT_EQ(cuda_.pop_context(&other), kSuccess);
  EXPECT_EQ(cuda_.set_bytes(address, 1, 100, stream_), 700);
  EXPECT_EQ(shim_->faults().work_after_sticky, 0U);
  EXPECT_EQ(cuda_.synchronize_stream(stream_), 700);
  EXPECT_EQ(cuda_.destroy_stream(stream_), 700);
  EXPECT_EQ(shim_->faults().work_after_sticky, 1U);
  EXPECT_EQ(shim_->faults().cleanup_after_sticky, 1U);
  EXPECT_THAT(shim_->report(), HasSubstr("100 bytes of GPU 1"));
  EXPECT_THAT(shim_->report(), HasSubstr("GPU 1 retained 1 times"));
}

TEST_F(CudaShimTest, ACopyBeyondTheEndIsTheEnd) {
  begin("");
  Address address = 0;
  std::array<std::byte, 101> bytes = {};
  ASSERT_EQ(cuda_.allocate(&address, 100), kSuccess);
  EXPECT_EQ(cuda_.copy_to_device(address, bytes.data(), 100, stream_), kSuccess);
  EXPECT_EQ(cuda_.copy_to_device(address, bytes.data(), 101, stream_), 700);
}

TEST_F(CudaShimTest, CallsWithoutAContextAreRefused) {
  begin("");
  Context popped = nullptr;
  ASSERT_EQ(cuda_.pop_context(&popped), kSuccess);
  Address address = 0;
  EXPECT_EQ(cuda_.allocate(&address, 1), 201);
  EXPECT_EQ(cuda_.pop_context(&popped), 201);
  ASSERT_EQ(cuda_.push_context(context_), kSuccess);
  end();
  EXPECT_EQ(shim_->faults().violations, 2U);
}

TEST_F(CudaShimTest, ContextsTakeTheirContentsAlong) {
  begin("");
  Event event = nullptr;
  ASSERT_EQ(cuda_.create_event(&event, 0), kSuccess);
  end();
  EXPECT_EQ(shim_->faults().leaks, 1U);
  EXPECT_THAT(shim_->report(), HasSubstr("an event of GPU 0"));
}

TEST_F(CudaShimTest, RegistrationIsByWholePagesOnce) {
  begin("memlock=12K,memlockcode=304");
  HostPages pages(4 * kPageBytes);
  EXPECT_EQ(cuda_.register_host(pages.bytes + 16, kPageBytes, kRegisterPortable), kInvalidValue);
  EXPECT_EQ(cuda_.register_host(pages.bytes, 2 * kPageBytes, kRegisterMapped), kSuccess);
  EXPECT_EQ(cuda_.register_host(pages.bytes + kPageBytes, kPageBytes, kRegisterMapped), 712);
  EXPECT_EQ(cuda_.register_host(pages.bytes + 2 * kPageBytes, 2 * kPageBytes, kRegisterMapped), kOperatingSystem);
  Address mapped = 0;
  EXPECT_EQ(cuda_.mapped_address(&mapped, pages.bytes + 100, 0), kSuccess);
  EXPECT_NE(mapped, reinterpret_cast<Address>(pages.bytes + 100));
  EXPECT_EQ(cuda_.unregister_host(pages.bytes + kPageBytes), 713);
  EXPECT_EQ(cuda_.unregister_host(pages.bytes), kSuccess);
  end();
}

TEST_F(CudaShimTest, MemoryEnds) {
  begin("memory=1M");
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  Address address = 0;
  Address more = 0;
  ASSERT_EQ(cuda_.allocate(&address, 1000000), kSuccess);
  EXPECT_EQ(cuda_.memory_info(&free_bytes, &total_bytes), kSuccess);
  EXPECT_EQ(total_bytes, std::size_t{1} << 20);
  EXPECT_EQ(free_bytes, total_bytes - 1000000);
  EXPECT_EQ(cuda_.allocate(&more, free_bytes + 1), kOutOfMemory);
  EXPECT_EQ(cuda_.free(address), kSuccess);
  end();
  EXPECT_EQ(shim_->faults(), Faults()) << shim_->report();
}

TEST_F(CudaShimTest, FailsTheCallThatItIsToldTo) {
  begin("fail=cuMemAlloc_v2:2:2,fail=cuMemFree_v2:1:1,fail=cuEventCreate:2:999:sticky");
  Address first = 0;
  Address second = 0;
  EXPECT_EQ(cuda_.allocate(&first, 1), kSuccess);
  EXPECT_EQ(cuda_.allocate(&second, 1), kOutOfMemory);
  EXPECT_EQ(cuda_.allocate(&second, 1), kSuccess);
  EXPECT_EQ(cuda_.free(first), kInvalidValue);  // and yet it is gone
  EXPECT_EQ(shim_->gpu_of(reinterpret_cast<std::byte*>(first)), -1);
  EXPECT_EQ(shim_->gpu_of(reinterpret_cast<std::byte*>(second)), 0);
  EXPECT_EQ(cuda_.free(second), kSuccess);
  Event event = nullptr;
  EXPECT_EQ(cuda_.create_event(&event, 0), kSuccess);
  EXPECT_EQ(cuda_.create_event(&event, 0), 999);
  EXPECT_EQ(cuda_.create_event(&event, 0), 999);
  EXPECT_EQ(shim_->calls("cuEventCreate"), 3U);
  EXPECT_EQ(shim_->faults().work_after_sticky, 1U);
}

TEST_F(CudaShimTest, AGpuIsLostWhileItWorks) {
  begin("async=2:719");
  Address address = 0;
  ASSERT_EQ(cuda_.allocate(&address, 8), kSuccess);
  ASSERT_EQ(cuda_.set_bytes(address, 1, 8, stream_), kSuccess);
  ASSERT_EQ(cuda_.synchronize_stream(stream_), kSuccess);
  ASSERT_EQ(cuda_.set_bytes(address, 2, 8, stream_), kSuccess);
  EXPECT_EQ(cuda_.synchronize_stream(stream_), 719);
  EXPECT_EQ(peek(address, 1)[0], std::byte{1});
  Context popped = nullptr;
  EXPECT_EQ(cuda_.pop_context(&popped), kSuccess);
  EXPECT_EQ(shim_->faults(), Faults());
}

TEST_F(CudaShimTest, ABitFlips) {
  begin("flip=2");
  Address address = 0;
  const std::array<std::byte, 4> bytes = {};
  ASSERT_EQ(cuda_.allocate(&address, 8), kSuccess);
  ASSERT_EQ(cuda_.copy_to_device(address, bytes.data(), 4, stream_), kSuccess);
  ASSERT_EQ(cuda_.copy_to_device(address + 4, bytes.data(), 4, stream_), kSuccess);
  ASSERT_EQ(cuda_.synchronize_stream(stream_), kSuccess);
  const std::vector<std::byte> found = peek(address, 8);
  EXPECT_EQ(std::count(found.begin(), found.end(), std::byte{0}), 7);
  EXPECT_NE(found[4], std::byte{0});
  EXPECT_EQ(cuda_.free(address), kSuccess);
  end();
}

TEST_F(CudaShimTest, KernelsRun) {
  begin("");
  Module module = nullptr;
  Function fill = nullptr;
  Function digest = nullptr;
  EXPECT_EQ(cuda_.load_module(&module, "nothing of use"), kInvalidImage);
  ASSERT_EQ(cuda_.load_module(&module, kImage), kSuccess);
  EXPECT_EQ(cuda_.find_function(&fill, module, "no_kernel"), 500);
  ASSERT_EQ(cuda_.find_function(&fill, module, kFillKernel), kSuccess);
  ASSERT_EQ(cuda_.find_function(&digest, module, kDigestKernel), kSuccess);

  HostPages list(kPageBytes);
  Address jobs = 0;
  Address memory = 0;
  Address sums = 0;
  ASSERT_EQ(cuda_.register_host(list.bytes, kPageBytes, kRegisterMapped), kSuccess);
  ASSERT_EQ(cuda_.mapped_address(&jobs, list.bytes, 0), kSuccess);
  ASSERT_EQ(cuda_.allocate(&memory, 1001), kSuccess);
  ASSERT_EQ(cuda_.allocate(&sums, 16), kSuccess);
  ASSERT_EQ(cuda_.set_bytes(sums, 0, 16, stream_), kSuccess);
  FillJob job{memory + 1, 500, 0x1234, 2, 0};
  void* fill_parameters[] = {&job};
  ASSERT_EQ(cuda_.launch(fill, 1, 1, 1, kBlockThreads, 1, 1, 0, stream_, fill_parameters, nullptr), kSuccess);
  job.target = 0;  // what was launched has a copy
  const DigestRange range{memory, 1001, 7, 0};
  std::memcpy(list.bytes, &range, sizeof(range));
  std::uint32_t count = 1;
  void* digest_parameters[] = {&jobs, &count, &sums};
  ASSERT_EQ(cuda_.launch(digest, 1, 1, 1, kBlockThreads, 1, 1, 0, stream_, digest_parameters, nullptr), kSuccess);
  device::Digest found;
  ASSERT_EQ(cuda_.copy_to_host(found.lanes.data(), sums, 16, stream_), kSuccess);

  std::vector<std::byte> expected(1001, std::byte{0x34});
  for (std::size_t i = 2; i < expected.size(); i += 2) expected[i] = std::byte{0x12};
  expected[0] = std::byte{0xCD};
  EXPECT_EQ(peek(memory, 1001), expected);
  EXPECT_EQ(found, device::digest_of(expected, 7));

  EXPECT_EQ(cuda_.launch(digest, 1, 1, 1, 32, 1, 1, 0, stream_, digest_parameters, nullptr), kInvalidValue);
  EXPECT_EQ(shim_->faults().violations, 1U);
  EXPECT_EQ(cuda_.unregister_host(list.bytes), kSuccess);
  EXPECT_EQ(cuda_.free(memory), kSuccess);
  EXPECT_EQ(cuda_.free(sums), kSuccess);
  EXPECT_EQ(cuda_.unload_module(module), kSuccess);
  end();
  EXPECT_EQ(shim_->faults().leaks, 0U) << shim_->report();
}

TEST_F(CudaShimTest, KernelsThatReachTooFarAreTheEnd) {
  begin("");
  Module module = nullptr;
  Function fill = nullptr;
  Address memory = 0;
  ASSERT_EQ(cuda_.load_module(&module, kImage), kSuccess);
  ASSERT_EQ(cuda_.find_function(&fill, module, kFillKernel), kSuccess);
  ASSERT_EQ(cuda_.allocate(&memory, 1000), kSuccess);
  FillJob job{memory, 501, 0, 2, 0};
  void* parameters[] = {&job};
  ASSERT_EQ(cuda_.launch(fill, 1, 1, 1, kBlockThreads, 1, 1, 0, stream_, parameters, nullptr), kSuccess);
  EXPECT_EQ(cuda_.synchronize_stream(stream_), 700);
}

TEST_F(CudaShimTest, DoesNotSurviveAFork) {
  begin("");
  const pid_t child = ::fork();
  if (child == 0) {
    Address address = 0;
    const bool is_refused = cuda_.init(0) == kNotInitialized && cuda_.allocate(&address, 1) == kNotInitialized;
    ::_exit(is_refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  end();
}

TEST_F(CudaShimTest, OldHandlesAreNoticed) {
  begin("");
  ASSERT_EQ(cuda_.destroy_stream(stream_), kSuccess);
  EXPECT_EQ(cuda_.synchronize_stream(stream_), 400);
  EXPECT_EQ(shim_->faults().violations, 1U);
}

}  // namespace
}  // namespace lading::cuda_shim
