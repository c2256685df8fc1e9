#include "io/read_exact.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "io/anchor.h"
#include "io/faulty_backend_for_tests.h"
#include "support/temp_dir.h"

namespace lading::io {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kForEver = std::numeric_limits<std::uint64_t>::max();

// Never more than a few bytes at a time, so that a read has many operations to be disturbed at.
class Trickle final : public ReadBackend {
 public:
  [[nodiscard]] std::string_view name() const override { return "trickle"; }
  [[nodiscard]] ReadSome read_some(const File& file, std::uint64_t offset_bytes, std::span<char> out) override {
    largest_ = std::max(largest_, out.size());
    return inner_.read_some(file, offset_bytes, out.first(std::min<std::size_t>(out.size(), 1000)));
  }
  [[nodiscard]] std::size_t largest() const { return largest_; }

 private:
  PreadBackend inner_;
  std::size_t largest_ = 0;
};

class ReadExactTest : public ::testing::Test {
 protected:
  ReadExactTest() {
    for (int i = 0; i < 20'500; ++i) content_ += static_cast<char>(i * 7 % 251);
    path_ = dir_.write("in/f", content_);
    anchor_ = std::make_unique<Anchor>(*Anchor::open(dir_.path("in")));
  }

  [[nodiscard]] File open() const { return *anchor_->open_file("f"); }

  test::TempDir dir_;
  std::string content_;
  std::string path_;
  std::unique_ptr<Anchor> anchor_;
  Trickle trickle_;
};

bool is_gone_through(FaultKind kind) { return kind != FaultKind::kEndOfFile && kind != FaultKind::kBitFlip; }

// Every kind of fault at every operation, until the fault comes after the end.
TEST_F(ReadExactTest, Fault32_Fault33_Fault34_Fault35_OneFaultAtEveryOperation) {
  for (const FaultKind kind : kAllFaultKinds) {
    for (std::uint64_t n = 0;; ++n) {
      ASSERT_LT(n, 100U);
      const File file = open();
      FaultyBackend backend(trickle_, {.kind = kind, .first = n});
      std::string out(content_.size(), '?');
      const auto result = read_exact(file, backend, 0, out);
      const std::string where = "kind " + std::to_string(static_cast<int>(kind)) + " at " + std::to_string(n);
      if (backend.faults() == 0) {
        ASSERT_TRUE(result.has_value()) << where;
        ASSERT_EQ(out, content_) << where;
        EXPECT_EQ(n, 21U) << "it took as many operations";
        break;
      }
      if (kind == FaultKind::kEndOfFile) {
        ASSERT_FALSE(result.has_value()) << where;
        EXPECT_EQ(result.error().code, Code::kFileTruncated) << where;
        EXPECT_EQ(result.error().bytes->begin, n * 1000) << where;
      } else {
        ASSERT_TRUE(result.has_value()) << where << ": " << result.error().text();
        EXPECT_EQ(out == content_, is_gone_through(kind)) << where;  // a flipped bit is for digests to find
      }
    }
  }
}

TEST_F(ReadExactTest, ManyFaultsByChance) {
  for (const FaultKind kind : {FaultKind::kShortRead, FaultKind::kEintr, FaultKind::kEagain, FaultKind::kEio}) {
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      const File file = open();
      FaultyBackend backend(trickle_, {.kind = kind, .first = {}, .probability = 0.2, .seed = seed});
      std::string out(content_.size(), '?');
      const auto result = read_exact(file, backend, 0, out);
      ASSERT_TRUE(result.has_value()) << result.error().text();
      EXPECT_EQ(out, content_);
      EXPECT_GT(backend.faults(), 0U);
    }
  }
}

TEST_F(ReadExactTest, Fault34_EioIsTriedThreeTimesMore) {
  for (const std::uint64_t count : {3U, 4U}) {
    const File file = open();
    FaultyBackend backend(trickle_, {.kind = FaultKind::kEio, .first = 2, .count = count});
    std::string out(content_.size(), '?');
    const auto result = read_exact(file, backend, 0, out);
    ASSERT_EQ(result.has_value(), count == 3);
    if (result) continue;
    EXPECT_EQ(result.error().code, Code::kReadFailed);
    EXPECT_EQ(result.error().file, path_);
    EXPECT_EQ(result.error().bytes, (ByteRange{2000, content_.size()}));
    EXPECT_THAT(result.error().message, HasSubstr("(5)"));
    EXPECT_FALSE(result.error().remedy.empty());
    EXPECT_EQ(backend.operations(), 6U);
  }
}

TEST_F(ReadExactTest, Fault33_EagainForEverIsAnError) {
  const File file = open();
  FaultyBackend backend(trickle_, {.kind = FaultKind::kEagain, .first = 1, .count = kForEver});
  std::string out(content_.size(), '?');
  const auto begin = std::chrono::steady_clock::now();
  const auto result = read_exact(file, backend, 0, out);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, Code::kReadFailed);
  EXPECT_EQ(result.error().bytes->begin, 1000U);
}

TEST_F(ReadExactTest, Fault35_StaleTwiceIsAnError) {
  const File file = open();
  FaultyBackend backend(trickle_, {.kind = FaultKind::kEstale, .first = 1, .count = 2});
  std::string out(content_.size(), '?');
  const auto result = read_exact(file, backend, 0, out);
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, Code::kReadFailed);
  EXPECT_EQ(result.error().bytes->begin, 1000U);
  EXPECT_FALSE(result.error().remedy.empty());
  EXPECT_EQ(file.generation(), 1U);
}

TEST_F(ReadExactTest, Fault35_StaleAndReplacedIsAnError) {
  const File file = open();
  dir_.write("g", content_);
  ASSERT_EQ(::rename(dir_.path("g").c_str(), path_.c_str()), 0);
  FaultyBackend backend(trickle_, {.kind = FaultKind::kEstale, .first = 1});
  std::string out(content_.size(), '?');
  const auto result = read_exact(file, backend, 0, out);
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, Code::kFileChanged);
  EXPECT_EQ(result.error().rule, "R45");
}

TEST_F(ReadExactTest, Fault35_WithoutAnOriginTheFileIsOpenedBehindItsDescriptor) {
  const auto file = File::adopt(Fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)), path_);
  ASSERT_TRUE(file.has_value());
  ASSERT_EQ(::unlink(path_.c_str()), 0);
  FaultyBackend backend(trickle_, {.kind = FaultKind::kEstale, .first = 1});
  std::string out(content_.size(), '?');
  const auto result = read_exact(*file, backend, 0, out);
  ASSERT_TRUE(result.has_value()) << result.error().text();
  EXPECT_EQ(out, content_);
}

// All threads meet the stale handle at about the same time; it is reopened once, and nobody reads elsewhere.
TEST_F(ReadExactTest, Fault35_ManyThreadsReopenOnce) {
  for (int round = 0; round < 20; ++round) {
    const File file = open();
    const int descriptor = file.descriptor();
    Notes notes;
    const auto direct = make_direct_backend(notes);
    std::string first(content_.size(), '?');
    ASSERT_TRUE(read_exact(file, *direct, 0, first).has_value());
    std::vector<std::string> outs(4, std::string(content_.size(), '?'));
    std::vector<std::thread> threads;
    std::atomic<int> failed = 0;
    for (std::string& out : outs) {
      threads.emplace_back([&] {
        PreadBackend pread;
        FaultyBackend backend(pread, {.kind = FaultKind::kEstale, .first = 0});
        // A thread that comes when all is over sees a file gone stale twice, and fails as it should.
        if (!read_exact(file, backend, 0, out)) ++failed;
        if (!read_exact(file, *direct, 0, out) || out != content_) failed += 100;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_LT(failed, 4);
    EXPECT_EQ(file.generation(), 1U);
    EXPECT_EQ(file.descriptor(), descriptor);
    EXPECT_TRUE(file.check_unchanged().has_value());
  }
}

TEST_F(ReadExactTest, OneCallIsAskedForOneGibibyteAtMost) {
  // Never touched beyond the file's size: only the length is looked at.
  const std::size_t size = (std::size_t{1} << 30) + 1000;
  const std::unique_ptr<char[]> memory(new char[size]);  // NOLINT: uninitialised on purpose
  const File file = open();
  const auto result = read_exact(file, trickle_, 0, {memory.get(), size});
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(trickle_.largest(), std::size_t{1} << 30);
}

}  // namespace
}  // namespace lading::io
