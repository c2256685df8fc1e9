#include "io/choose.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "io/read_exact.h"
#include "support/temp_dir.h"

namespace lading::io {
namespace {

using ::testing::IsEmpty;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

FileFacts facts(FileSystem kind, std::uint64_t size_bytes, std::uint64_t resident_percent) {
  return {kind, size_bytes, Residency{resident_percent, 100}};
}

TEST(Judge, ColdAndBigOnAPlainDiskIsDirect) {
  for (const FileSystem kind : {FileSystem::kExt, FileSystem::kXfs}) {
    EXPECT_EQ(judge(facts(kind, 64 * kMiB, 0)), FileVerdict::kDirect);
    EXPECT_EQ(judge(facts(kind, 5000 * kMiB, 5)), FileVerdict::kDirect);
    EXPECT_EQ(judge(facts(kind, 64 * kMiB, 6)), FileVerdict::kByRead);
    EXPECT_EQ(judge(facts(kind, 64 * kMiB, 89)), FileVerdict::kByRead);
    EXPECT_EQ(judge(facts(kind, 64 * kMiB, 90)), FileVerdict::kBuffered);
    EXPECT_EQ(judge(facts(kind, 64 * kMiB - 1, 0)), FileVerdict::kBuffered) << "small";
    EXPECT_EQ(judge({kind, 5000 * kMiB, std::nullopt}), FileVerdict::kBuffered) << "unknown";
  }
}

TEST(Judge, EverythingElseIsBuffered) {
  for (const FileSystem kind : {FileSystem::kMemory, FileSystem::kBtrfs, FileSystem::kF2fs, FileSystem::kZfs,
                                FileSystem::kOverlay, FileSystem::kNetwork, FileSystem::kFuse, FileSystem::kOther}) {
    EXPECT_EQ(judge(facts(kind, 5000 * kMiB, 0)), FileVerdict::kBuffered) << word(kind);
  }
}

class ChooserTest : public ::testing::Test {
 protected:
  // Of zeros, on the disk rather than a hole.
  [[nodiscard]] File make(const test::TempDir& dir, std::uint64_t size) const {
    const std::string path = dir.write("f", std::string(size, '\0'));
    return *File::adopt(Fd(::open(path.c_str(), O_RDWR | O_CLOEXEC)), path);
  }

  static bool evict(const File& file) {
    for (int i = 0; i < 50; ++i) {
      EXPECT_EQ(::fdatasync(file.descriptor()), 0);
      EXPECT_EQ(::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED), 0);
      const auto left = residency(file, {0, file.size_bytes()});
      if (left && left->share() < 0.01) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  static bool is_plain_disk(const File& file) {
    const FileSystem kind = file_system_of(file);
    return kind == FileSystem::kExt || kind == FileSystem::kXfs;
  }

  test::TempDir dir_;
};

TEST_F(ChooserTest, LooksAtRealFiles) {
  const File file = make(dir_, 64 * kMiB);
  if (!is_plain_disk(file)) GTEST_SKIP() << "no ext or xfs here";
  EXPECT_EQ(Chooser(ReadMethod::kAuto).pick(file, {0, kMiB}).name(), "pread") << "just written";
  if (!evict(file)) GTEST_SKIP() << "the pages stay";
  Chooser cold(ReadMethod::kAuto);
  EXPECT_EQ(cold.pick(file, {0, kMiB}).name(), "uring_direct");

  // A third of it comes into the cache: by then each range is looked at.
  std::string out(20 * kMiB, '?');
  ASSERT_TRUE(file.read_exact(0, out).has_value());
  EXPECT_EQ(cold.pick(file, {0, kMiB}).name(), "uring_direct") << "a file is judged once";
  Chooser partly(ReadMethod::kAuto);
  EXPECT_EQ(partly.pick(file, {0, 8 * kMiB}).name(), "pread");
  EXPECT_EQ(partly.pick(file, {40 * kMiB, 48 * kMiB}).name(), "uring_direct");
  EXPECT_EQ(partly.pick(file, {16 * kMiB, 60 * kMiB}).name(), "uring_direct") << "mostly cold";
}

TEST_F(ChooserTest, SmallFilesAreBuffered) {
  const File file = make(dir_, kMiB);
  evict(file);
  EXPECT_EQ(Chooser(ReadMethod::kAuto).pick(file, {0, kMiB}).name(), "pread");
}

TEST_F(ChooserTest, MemoryIsBuffered) {
  ::setenv("TMPDIR", "/dev/shm", 1);
  const test::TempDir memory;
  ::unsetenv("TMPDIR");
  const File file = make(memory, 65 * kMiB);
  EXPECT_EQ(Chooser(ReadMethod::kAuto).pick(file, {0, kMiB}).name(), "pread");
}

TEST_F(ChooserTest, AMethodIsObeyedAndReads) {
  const File file = make(dir_, 2 * kMiB + 3);
  for (const auto& [word, method] : kReadMethods) {
    if (method == ReadMethod::kAuto) continue;
    std::string name(word);
    std::replace(name.begin(), name.end(), '-', '_');
    Chooser chooser(method);
    ReadBackend& backend = chooser.pick(file, {0, 2 * kMiB + 3});
    EXPECT_EQ(backend.name(), name);
    std::string out(2 * kMiB + 3, '?');
    ASSERT_TRUE(read_exact(file, backend, 0, out).has_value());
    EXPECT_EQ(out, std::string(2 * kMiB + 3, '\0'));
  }
}

TEST_F(ChooserTest, ManyThreadsPickAndRead) {
  const File file = make(dir_, 65 * kMiB);
  evict(file);
  Chooser chooser(ReadMethod::kAuto);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::string out(kMiB, '?');
      for (std::uint64_t i = t; i < 65; i += 4) {
        ReadBackend& backend = chooser.pick(file, {i * kMiB, (i + 1) * kMiB});
        if (!read_exact(file, backend, i * kMiB, out) || out.find_first_not_of('\0') != std::string::npos) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace lading::io
