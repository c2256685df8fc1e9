// Every fault at every place: fail the Nth operation, for every N until the load gets through. Each load ends right, or
// in an error that names file, tensor and place; never in a wrong "complete".
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include "exec/random_load_for_tests.h"
#include "io/faulty_backend_for_tests.h"
#include "support/sanitizers.h"

// The sanitizers' runtimes bring an operator new of their own.
#define LADING_OWN_NEW (!LADING_HAS_ASAN && !LADING_HAS_TSAN)

namespace {

// Makes the Nth allocation of this process fail, while it is armed.
std::atomic<std::int64_t> allocations_left = -1;

[[maybe_unused]] bool allocation_fails() {
  if (allocations_left.load(std::memory_order_relaxed) < 0) return false;
  return allocations_left.fetch_sub(1, std::memory_order_relaxed) == 0;
}

}  // namespace

#if LADING_OWN_NEW
// Inlined into a caller, the pair looks to g++ like a new that is freed.
[[gnu::noinline]] void* operator new(std::size_t size) {
  if (allocation_fails()) throw std::bad_alloc();
  void* const memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace lading::exec {
namespace {

using io::FaultKind;

// Loads whose ties are fine and that read something.
std::vector<std::uint64_t> seeds_with_reads(std::size_t count) {
  std::vector<std::uint64_t> seeds;
  for (std::uint64_t seed = 1000; seeds.size() < count; ++seed) {
    RandomLoad load(seed);
    std::uint64_t read = 0;
    for (const plan::RankPlan& rank : load.plan().ranks) read += rank.read_bytes;
    if (read > 200 && !load.ties_differ()) seeds.push_back(seed);
  }
  return seeds;
}

struct Sweep {
  int right = 0;
  int refused = 0;
  int wrong = 0;
};

// What must hold after any load.
void judge(const RandomLoad& load, const Outcome& outcome, Sweep& sweep) {
  if (outcome.errors.empty()) {
    ++(load.is_right() ? sweep.right : sweep.wrong);
    return;
  }
  ++sweep.refused;
  const Error& error = outcome.errors.front();
  EXPECT_TRUE(error.tensor.has_value()) << error.text();
  EXPECT_TRUE(error.rank.has_value()) << error.text();
  EXPECT_FALSE(error.file.empty()) << error.text();
  EXPECT_TRUE(error.bytes.has_value()) << error.text();
}

Sweep sweep_reads(FaultKind kind, std::uint64_t in_a_row) {
  Sweep sweep;
  for (const std::uint64_t seed : seeds_with_reads(test::random_cases(24))) {
    for (std::uint64_t nth = 0;; ++nth) {
      RandomLoad load(seed);
      io::PreadBackend pread;
      io::FaultyBackend faulty(pread, {.kind = kind, .first = nth, .count = in_a_row});
      Options options;
      options.threads = 2;
      options.staging_buffer_bytes = 64;
      options.backend = &faulty;
      const Inputs inputs = load.inputs();
      const Outcome outcome = execute(inputs, options);
      judge(load, outcome, sweep);
      if (faulty.faults() == 0) {
        EXPECT_TRUE(outcome.errors.empty());
        break;
      }
    }
  }
  EXPECT_EQ(sweep.wrong, 0);
  EXPECT_GT(sweep.right + sweep.refused, 100);
  return sweep;
}

TEST(Faults, Fault32_ShortReadsAreGoneThrough) { EXPECT_EQ(sweep_reads(FaultKind::kShortRead, 1).refused, 0); }
TEST(Faults, Fault33_InterruptionsAreGoneThrough) {
  EXPECT_EQ(sweep_reads(FaultKind::kEintr, 3).refused, 0);
  EXPECT_EQ(sweep_reads(FaultKind::kEagain, 1).refused, 0);
}
TEST(Faults, Fault34_AReadErrorThatPassesIsGoneThrough) { EXPECT_EQ(sweep_reads(FaultKind::kEio, 1).refused, 0); }
TEST(Faults, Fault34_AReadErrorThatStaysIsNamed) {
  const Sweep sweep = sweep_reads(FaultKind::kEio, 100000);
  EXPECT_GT(sweep.refused, 100);
}
TEST(Faults, Fault37_TheEndOfAFileIsNamed) { EXPECT_GT(sweep_reads(FaultKind::kEndOfFile, 1).refused, 100); }

TEST(Faults, Fault40_AFlippedBitShowsInTheDigest) {
  int flipped = 0;
  for (const std::uint64_t seed : seeds_with_reads(24)) {
    RandomLoad load(seed);
    io::PreadBackend pread;
    io::FaultyBackend faulty(pread, {.kind = FaultKind::kBitFlip, .first = 0});
    Options options;
    options.backend = &faulty;
    const Inputs inputs = load.inputs();
    const Outcome outcome = execute(inputs, options);
    if (!outcome.errors.empty()) continue;  // the flip fell into a tie's second key
    bool differs = false;
    for (std::size_t t = 0; t < outcome.outcomes.size(); ++t)
      differs |= outcome.outcomes[t].digest != load.digests()[t];
    EXPECT_EQ(differs, !load.is_right()) << "seed " << seed;
    flipped += differs ? 1 : 0;
  }
  EXPECT_GT(flipped, 6);
}

TEST(Faults, Fault43_EveryAllocationMayFail) {
  if (!LADING_OWN_NEW) GTEST_SKIP() << "no operator new of our own under this sanitizer";
  int refused = 0;
  for (const std::uint64_t seed : seeds_with_reads(3)) {
    for (std::int64_t nth = 0;; ++nth) {
      RandomLoad load(seed);
      Options options;
      options.threads = 2;
      options.staging_buffer_bytes = 256;
      const Inputs inputs = load.inputs();
      allocations_left = nth;
      const Outcome outcome = execute(inputs, options);
      const bool failed = allocations_left < 0;
      allocations_left = -1;
      if (outcome.errors.empty()) {
        ASSERT_TRUE(load.is_right()) << "seed " << seed << ", allocation " << nth;
      } else {
        EXPECT_EQ(outcome.errors.front().code, Code::kOutOfMemory) << outcome.errors.front().text();
        ++refused;
      }
      if (!failed) break;
    }
  }
  EXPECT_GT(refused, 100);
}

TEST(Faults, AFileThatCannotBeOpenedIsNamed) {
  RandomLoad load(seeds_with_reads(1).front());
  Inputs inputs = load.inputs();
  inputs.open = [](plan::FileId) -> Result<io::File> { return fail(Error(Code::kOpenFailed, "gone")); };
  const Outcome outcome = execute(inputs, {});
  ASSERT_FALSE(outcome.errors.empty());
  EXPECT_EQ(outcome.errors.front().code, Code::kOpenFailed);
  EXPECT_FALSE(outcome.errors.front().file.empty());
  EXPECT_TRUE(outcome.errors.front().tensor.has_value());
}

// Somebody cancels while the first bytes are read.
class CancellingBackend final : public io::ReadBackend {
 public:
  explicit CancellingBackend(std::atomic<bool>& cancelled) : cancelled_(cancelled) {}
  [[nodiscard]] std::string_view name() const override { return "cancelling"; }
  [[nodiscard]] io::ReadSome read_some(const io::File& file, std::uint64_t offset_bytes, std::span<char> out) override {
    cancelled_ = true;
    return pread_.read_some(file, offset_bytes, out);
  }

 private:
  io::PreadBackend pread_;
  std::atomic<bool>& cancelled_;
};

TEST(Faults, Fault56_ACancelledLoadIsNotComplete) {
  for (const std::uint64_t seed : seeds_with_reads(6)) {
    RandomLoad load(seed);
    std::atomic<bool> cancelled = false;
    CancellingBackend backend(cancelled);
    Options options;
    options.staging_buffer_bytes = 64;
    options.backend = &backend;
    options.cancelled = &cancelled;
    const Inputs inputs = load.inputs();
    const Outcome outcome = execute(inputs, options);
    ASSERT_FALSE(outcome.errors.empty());
    EXPECT_EQ(outcome.errors.size(), 1U);
    EXPECT_EQ(outcome.errors.front().code, Code::kCancelled);
  }
}

TEST(Faults, MemoryThatIsTooSmallIsRefusedBeforeAByteIsWritten) {
  RandomLoad load(seeds_with_reads(1).front());
  const auto before = load.buffers();
  Inputs inputs = load.inputs();
  int refused = 0;
  for (auto& rank : inputs.memory) {
    for (DestinationMemory& memory : rank) {
      if (memory.size_bytes == 0) continue;
      --memory.size_bytes;
      ++refused;
    }
  }
  const Outcome outcome = execute(inputs, {});
  EXPECT_EQ(outcome.errors.size(), static_cast<std::size_t>(refused)) << "all of them, not the first";
  EXPECT_EQ(load.buffers(), before);
}

TEST(Faults, Fault58_LoadsAtOnceDoNotDisturbEachOther) {
  const std::vector<std::uint64_t> seeds = seeds_with_reads(16);
  std::atomic<int> right = 0;
  std::vector<std::jthread> threads;
  for (const std::uint64_t seed : seeds) {
    threads.emplace_back([&right, seed] {
      RandomLoad load(seed);
      Options options;
      options.threads = 2;
      options.staging_buffer_bytes = 64;
      const Inputs inputs = load.inputs();
      const Outcome outcome = execute(inputs, options);
      if (outcome.errors.empty() && load.is_right()) ++right;
    });
  }
  threads.clear();
  EXPECT_EQ(right, 16);
}

}  // namespace
}  // namespace lading::exec
