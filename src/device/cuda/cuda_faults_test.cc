// Everything that can go wrong with a GPU, on the stand-in for the driver (tests/cuda_shim): always an error or the
// right bytes, nothing left behind, not a word to a GPU that is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "cuda_shim/control.h"
#include "device/cuda/driver.h"
#include "device/cuda/lane_script_for_tests.h"
#include "device/device.h"
#include "device/quantized/quantized_for_tests.h"

namespace lading::device::cuda {
namespace {

using cuda_shim::Faults;
using cuda_shim::Shim;
using testing::HasSubstr;

constexpr std::size_t kBufferBytes = 256 << 10;
constexpr std::size_t kMemoryBytes = 1 << 20;

struct Results {
  std::vector<std::byte> memory;
  Digest digest;
  std::vector<std::string> notes;
};

std::byte noise_at(std::size_t i) { return static_cast<std::byte>(i * 2654435761U >> 13); }

const BlockScales& block_scales() {
  static const BlockScales scales = quantized::equal_scales({64, 64}, {32, 64}, 2, 0.5);
  return scales;
}

/// Each way that bytes take to a device, once: a copy, a copy of rows, a cast, quantized ones, values of the caller's.
Result<void> use_lane(Lane& lane, std::byte* memory) {
  constexpr std::uint64_t kHalf = kBufferBytes / 2;
  for (std::size_t round = 0; round < 3; ++round) {
    LADING_ASSIGN_OR_RETURN(const std::span<std::byte> buffer, lane.acquire_staging_buffer());
    for (std::size_t i = 0; i < buffer.size(); ++i) buffer[i] = noise_at(round * kBufferBytes + i);
    std::byte* const target = memory + round * kBufferBytes;
    LADING_TRY(lane.move({buffer.data(), target, 70000, DType::kU8, DType::kU8, {}}));
    const std::array rows = {ByteLoop{64, 1100, 1200}};
    LADING_TRY(lane.move({buffer.data() + 72000, target + 72000, 1024, DType::kU8, DType::kU8, rows}));
    LADING_TRY(lane.move({buffer.data() + kHalf + 20000, target + kHalf + 22000, 5000, DType::kF32, DType::kBF16, {}}));
    const Scaling scaling{&block_scales(), 0, {}};
    LADING_TRY(lane.move({buffer.data() + 170000, target + 170000, 4096, DType::kF8E4M3, DType::kBF16, {}, &scaling}));
    LADING_TRY(lane.release_staging_buffer());
    LADING_TRY(lane.digest({target, kBufferBytes, round * kBufferBytes, 0}));
  }
  std::byte* const rest = memory + 3 * kBufferBytes;
  const std::vector<std::byte> values(5000, std::byte{9});
  LADING_TRY(lane.move({values.data(), rest, values.size(), DType::kU8, DType::kU8, {}}));
  LADING_TRY(lane.fill({rest + 5000, 1000, DType::kBF16, 0x3F80}));
  LADING_ASSIGN_OR_RETURN(const SampleParameters normal, prepare_sample(RandomRecipe()));
  LADING_TRY(lane.sample({rest + 7000, 0, 1000, DType::kF32, normal, random_key(1, "weight")}));
  return lane.digest({rest, 11000, 3 * kBufferBytes, 0});
}

Result<Results> make(Device& device) {
  Results made;
  DigestAccounts accounts(1);
  LADING_ASSIGN_OR_RETURN(const std::shared_ptr<std::byte> memory, device.allocate(kMemoryBytes));
  LADING_TRY(device.check({memory.get(), kMemoryBytes}));
  LADING_TRY(device.take_scales(block_scales()));
  LADING_ASSIGN_OR_RETURN(const std::unique_ptr<Lane> lane, device.open_lane({kBufferBytes, 2, &accounts}));
  LADING_TRY(lane->fill({memory.get(), kMemoryBytes, DType::kU8, 0x11}));
  LADING_TRY(lane->finish());  // what is written twice is not in the order of the calls
  const Result<void> used = use_lane(*lane, memory.get());
  const Result<void> finished = lane->finish();
  LADING_TRY(used);
  LADING_TRY(finished);
  made.memory.resize(kMemoryBytes);
  LADING_TRY(lane->fetch(memory.get(), made.memory));
  LADING_TRY(device.collect_digests());
  made.digest = accounts.of(0);
  made.notes = device.take_notes();
  return made;
}

Result<Results> make_on_gpu() {
  LADING_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, open_device("cuda:0"));
  return make(*device);
}

void expect_right(const Results& made) {
  static const Results expected = *make(*host_device());
  EXPECT_TRUE(made.memory == expected.memory);
  EXPECT_EQ(made.digest, expected.digest);
}

Error error_of(const std::string& device) {
  const auto opened = open_device(device);
  EXPECT_FALSE(opened) << device;
  return opened ? Error(Code::kUsage, "no error") : opened.error();
}

class CudaFaults : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_not_on_shim(); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_F(CudaFaults, NothingIsWrongWithoutOne) {
  const Shim shim(LADING_CUDA_SHIM_PATH, "");
  const Result<Results> made = make_on_gpu();
  ASSERT_TRUE(made) << made.error().text();
  expect_right(*made);
  EXPECT_EQ(shim.faults(), Faults()) << shim.report();
  // The scenario is one in which every function can fail that a load calls.
  for (const char* symbol : {"cuMemcpy2DAsync_v2", "cuMemcpyHtoDAsync_v2", "cuMemHostRegister_v2", "cuEventSynchronize",
                             "cuMemHostGetDevicePointer_v2", "cuLaunchKernel", "cuMemsetD8Async"}) {
    EXPECT_GT(shim.calls(symbol), 0U) << symbol;
  }
}

TEST_F(CudaFaults, NoDriver) {
  ::setenv("LADING_LIBCUDA", "libnowhere.so.1", 1);
  const Error error = error_of("cuda:0");
  ::unsetenv("LADING_LIBCUDA");
  EXPECT_EQ(error.code, Code::kNoDevice);
  EXPECT_THAT(error.text(), HasSubstr("the CUDA driver could not be opened"));
  EXPECT_THAT(error.text(), HasSubstr("libnowhere.so.1"));
}

TEST_F(CudaFaults, ADriverThatIsTooOld) {
  const Shim shim(LADING_CUDA_SHIM_PATH, "version=11080");
  const Error error = error_of("cuda:0");
  EXPECT_EQ(error.code, Code::kNoDevice);
  EXPECT_THAT(error.text(), HasSubstr("too old: it is for CUDA 11.8"));
  EXPECT_THAT(error.remedy, HasSubstr("CUDA 12.0"));
  EXPECT_EQ(shim.faults(), Faults());
  const Shim old(LADING_CUDA_SHIM_OLD_PATH, "");
  EXPECT_THAT(error_of("cuda:0").text(), HasSubstr("too old: it has no cuMemcpy2DAsync_v2"));
}

TEST_F(CudaFaults, NoGpu) {
  const Shim shim(LADING_CUDA_SHIM_PATH, "gpus=0");
  const Error error = error_of("cuda:0");
  EXPECT_EQ(error.code, Code::kNoDevice);
  EXPECT_THAT(error.text(), HasSubstr("sees no GPU"));
  EXPECT_THAT(error.remedy, HasSubstr("CUDA_VISIBLE_DEVICES"));
}

TEST_F(CudaFaults, R34_AnIndexThatIsNotThere) {
  const Shim shim(LADING_CUDA_SHIM_PATH, "gpus=2");
  const Error error = error_of("cuda:2");
  EXPECT_EQ(error.code, Code::kNoDevice);
  EXPECT_EQ(error.rule, "R34");
  EXPECT_EQ(error.expected, "an index below 2");
  for (const char* name : {"cuda", "cuda:", "cuda:-1", "cuda:0x", "cuda:1 ", "CUDA:0", "cuda:99999999999", ""}) {
    EXPECT_EQ(error_of(name).code, Code::kNoDevice) << name;
  }
  EXPECT_EQ(shim.faults(), Faults()) << shim.report();
}

TEST_F(CudaFaults, ADriverThatDoesNotStart) {
  const Shim shim(LADING_CUDA_SHIM_PATH, "fail=cuInit:1:803:always");
  const Error error = error_of("cuda:0");
  EXPECT_EQ(error.code, Code::kNoDevice);
  EXPECT_THAT(error.text(), HasSubstr("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)"));
}

TEST_F(CudaFaults, F45_TooLittleMemoryNamesTheBytesShort) {
  const Shim shim(LADING_CUDA_SHIM_PATH, "memory=1M");
  {
    const auto gpu = open_device("cuda:0");
    ASSERT_TRUE(gpu) << gpu.error().text();
    const auto memory = (*gpu)->allocate((1 << 20) + 4711);
    ASSERT_FALSE(memory);
    EXPECT_EQ(memory.error().code, Code::kDeviceMemory);
    EXPECT_THAT(memory.error().text(), HasSubstr("4711 bytes short"));
    EXPECT_TRUE((*gpu)->allocate(1 << 20));
  }
  EXPECT_EQ(shim.faults(), Faults()) << shim.report();
}

TEST_F(CudaFaults, F45_TooLittleMemoryForScalesIsToldBeforeAnythingIsWritten) {
  const Shim shim(LADING_CUDA_SHIM_PATH, "memory=1M");
  {
    const auto gpu = open_device("cuda:0");
    ASSERT_TRUE(gpu) << gpu.error().text();
    // Less than is taken at once where there is more, and then too much.
    const BlockScales some = quantized::equal_scales({1 << 16}, {1}, 1 << 16, 2);
    EXPECT_TRUE((*gpu)->take_scales(some));
    const BlockScales more = quantized::equal_scales({(1 << 16) + 1}, {1}, (1 << 16) + 1, 2);
    const Result<void> taken = (*gpu)->take_scales(more);
    ASSERT_FALSE(taken);
    EXPECT_EQ(taken.error().code, Code::kDeviceMemory);
    EXPECT_THAT(taken.error().text(), HasSubstr("524296 bytes"));
  }
  EXPECT_EQ(shim.faults(), Faults()) << shim.report();
}

TEST_F(CudaFaults, BlocksInTooManyDimsAreRefused) {
  const Shim shim(LADING_CUDA_SHIM_PATH, "");
  {
    const auto gpu = open_device("cuda:0");
    ASSERT_TRUE(gpu) << gpu.error().text();
    const BlockScales odd = quantized::equal_scales({5, 5, 5, 5, 5}, {2, 2, 2, 2, 2}, 243, 1);
    const Result<void> taken = (*gpu)->take_scales(odd);
    ASSERT_FALSE(taken);
    EXPECT_EQ(taken.error().code, Code::kDeviceFailed);
    EXPECT_THAT(taken.error().text(), HasSubstr("blocks of [2, 2, 2, 2, 2] in a tensor of [5, 5, 5, 5, 5]"));
    const BlockScales fine = quantized::equal_scales({5, 5, 5, 5, 5}, {1, 1, 2, 2, 5}, 225, 1);
    EXPECT_TRUE((*gpu)->take_scales(fine));
  }
  EXPECT_EQ(shim.faults(), Faults()) << shim.report();
}

TEST_F(CudaFaults, F45_WithoutMemoryForStagingItIsSlowerAndRight) {
  // Room for the destination and for digests, not for a buffer's twin.
  const Shim shim(LADING_CUDA_SHIM_PATH, "memory=1049600");
  const Result<Results> made = make_on_gpu();
  ASSERT_TRUE(made) << made.error().text();
  expect_right(*made);
  EXPECT_THAT(made->notes, testing::Contains(HasSubstr("no device memory is left for staging")));
  EXPECT_EQ(shim.faults(), Faults()) << shim.report();
}

TEST_F(CudaFaults, F43_WhatCannotBePinnedIsSaidOnce) {
  for (const int kibibytes : {0, 256, 512, 600, 768, 1000}) {
    for (const int code : {kOutOfMemory, kOperatingSystem, kNotSupported}) {
      const Shim shim(LADING_CUDA_SHIM_PATH,
                      "memlock=" + std::to_string(kibibytes) + "K,memlockcode=" + std::to_string(code));
      const Result<Results> made = make_on_gpu();
      ASSERT_TRUE(made) << kibibytes << ": " << made.error().text();
      expect_right(*made);
      const auto is_of_pinning = [](const std::string& note) { return note.find("pinned") != std::string::npos; };
      EXPECT_LE(std::count_if(made->notes.begin(), made->notes.end(), is_of_pinning), 1);
      if (kibibytes < 512) {
        EXPECT_THAT(made->notes, testing::Contains(HasSubstr("memlock")));
      }
      EXPECT_EQ(shim.faults(), Faults()) << shim.report();
    }
  }
}

TEST_F(CudaFaults, F40_AFlippedBitShowsInTheDigest) {
  const Result<Results> expected = make(*host_device());
  int seen = 0;
  for (int nth = 1; nth <= 14; ++nth) {  // all transfers, whose order varies a little
    const Shim shim(LADING_CUDA_SHIM_PATH, "flip=" + std::to_string(nth));
    const Result<Results> made = make_on_gpu();
    ASSERT_TRUE(made) << made.error().text();
    if (made->memory == expected->memory) continue;  // it was in a place that no kernel read
    ++seen;
    EXPECT_NE(made->digest, expected->digest) << nth;
  }
  EXPECT_GE(seen, 9);
}

TEST_F(CudaFaults, F46_AGpuThatIsLostWhileItWorks) {
  bool is_over = false;
  for (int nth = 1; !is_over; ++nth) {
    const Shim shim(LADING_CUDA_SHIM_PATH, "async=" + std::to_string(nth) + ":719");
    const Result<Results> made = make_on_gpu();
    is_over = made.has_value();
    if (is_over) {
      expect_right(*made);
      EXPECT_GT(nth, 20);
    } else {
      EXPECT_EQ(made.error().code, Code::kDeviceFailed);
      EXPECT_THAT(made.error().text(), HasSubstr("CUDA_ERROR_LAUNCH_FAILED (719)"));
      EXPECT_THAT(made.error().remedy, HasSubstr("Restart the process"));
    }
    ASSERT_EQ(shim.faults(), Faults()) << nth << shim.report();
  }
}

TEST_F(CudaFaults, F58_AChildOfForkIsToldWhatToDo) {
  const Shim shim(LADING_CUDA_SHIM_PATH, "");
  ASSERT_TRUE(make_on_gpu());
  const pid_t child = ::fork();
  if (child == 0) {
    const auto opened = open_device("cuda:0");
    ::_exit(!opened && opened.error().text().find("fork") != std::string::npos ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(CudaFaults, F58_TwoLoadsShareAGpu) {
  const Shim shim(LADING_CUDA_SHIM_PATH, "");
  {
    const auto first = open_device("cuda:0");
    const auto second = open_device("cuda:0");
    ASSERT_TRUE(first && second);
    const Result<Results> made = make(**first);
    ASSERT_TRUE(made) << made.error().text();
    expect_right(*made);
    const Result<Results> again = make(**second);
    ASSERT_TRUE(again) << again.error().text();
    expect_right(*again);
  }
  EXPECT_EQ(shim.faults(), Faults()) << shim.report();
}

struct Kind {
  int code;
  const char* lasting;
};

/// Codes that a context survives, and codes that are its end.
class CudaFaultSweep : public testing::TestWithParam<Kind> {};

TEST_P(CudaFaultSweep, F43_F45_F46_EveryCallMayFail) {
  if (const std::string why = why_not_on_shim(); !why.empty()) GTEST_SKIP() << why;
  const Kind kind = GetParam();
#define LADING_SYMBOL(member, symbol, ...) symbol,
  for (const char* const symbol : {LADING_CUDA_FUNCTIONS(LADING_SYMBOL)}) {
#undef LADING_SYMBOL
    for (std::uint64_t nth = 1;; ++nth) {
      const std::string text = "delay=20,fail=" + std::string(symbol) + ":" + std::to_string(nth) + ":" +
                               std::to_string(kind.code) + ":" + kind.lasting;
      const Shim shim(LADING_CUDA_SHIM_PATH, text);
      const Result<Results> made = make_on_gpu();
      if (made) expect_right(*made);
      Faults faults = shim.faults();
      // Whom the driver does not let into its context cannot give back what is there.
      if (std::string_view(symbol) == "cuCtxPushCurrent_v2") faults.leaks = 0;
      ASSERT_EQ(faults, Faults()) << text << "\n" << shim.report();
      ASSERT_FALSE(testing::Test::HasFailure()) << text;
      if (shim.calls(symbol) < nth) {
        ASSERT_TRUE(made) << text << ": " << made.error().text();
        break;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, CudaFaultSweep,
                         testing::Values(Kind{kInvalidValue, "once"}, Kind{kOutOfMemory, "once"},
                                         Kind{kOutOfMemory, "always"}, Kind{kNotSupported, "always"},
                                         Kind{700, "sticky"}, Kind{999, "sticky"}),
                         [](const auto& test) { return test.param.lasting + std::to_string(test.param.code); });

}  // namespace
}  // namespace lading::device::cuda
