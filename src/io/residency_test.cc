#include "io/residency.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "support/temp_dir.h"

namespace lading::io {
namespace {

constexpr std::size_t kPages = 512;
constexpr ResidencyMethod kMethods[] = {ResidencyMethod::kCachestat, ResidencyMethod::kMincore,
                                        ResidencyMethod::kSample};

class ResidencyTest : public ::testing::Test {
 protected:
  ResidencyTest() : page_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))) {}

  [[nodiscard]] File make(std::size_t size) const {
    const std::string path = dir_.write("f", std::string(size, 'x'));
    return *File::adopt(Fd(::open(path.c_str(), O_RDWR | O_CLOEXEC)), path);
  }

  // Dirty pages stay in the cache: they are written first. False if the file system keeps them all the same.
  static bool evict(const File& file) {
    for (int i = 0; i < 50; ++i) {
      EXPECT_EQ(::fdatasync(file.descriptor()), 0);
      EXPECT_EQ(::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED), 0);
      const auto left = residency(file, {0, file.size_bytes()});
      if (left && left->resident_pages == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  test::TempDir dir_;
  std::size_t page_;
};

TEST_F(ResidencyTest, WrittenIsResidentAndEvictedIsNot) {
  const File file = make(kPages * page_);
  const ByteRange all{0, file.size_bytes()};
  for (const ResidencyMethod method : kMethods) {
    const auto before = residency_by(method, file, all);
    if (!before) continue;  // not on this kernel
    EXPECT_EQ(before->share(), 1.0) << static_cast<int>(method);
  }
  ASSERT_TRUE(residency(file, all).has_value());
  if (!evict(file)) GTEST_SKIP() << "this file system keeps its pages";
  for (const ResidencyMethod method : kMethods) {
    const auto after = residency_by(method, file, all);
    if (!after) continue;
    EXPECT_LE(after->share(), 0.1) << static_cast<int>(method);
  }
}

TEST_F(ResidencyTest, LookingDoesNotReadThePagesIn) {
  const File file = make(kPages * page_);
  if (!evict(file)) GTEST_SKIP() << "this file system keeps its pages";
  for (const ResidencyMethod method : {ResidencyMethod::kCachestat, ResidencyMethod::kMincore}) {
    for (int i = 0; i < 3; ++i) {
      const auto found = residency_by(method, file, {0, file.size_bytes()});
      if (found) {
        EXPECT_EQ(found->resident_pages, 0U);
      }
    }
  }
}

TEST_F(ResidencyTest, PartsAreToldApart) {
  const File file = make(kPages * page_);
  if (!evict(file)) GTEST_SKIP() << "this file system keeps its pages";
  ASSERT_EQ(::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_RANDOM), 0);  // no read-ahead
  std::string out(100 * page_, '?');
  ASSERT_TRUE(file.read_exact(200 * page_, out).has_value());
  for (const ResidencyMethod method : {ResidencyMethod::kCachestat, ResidencyMethod::kMincore}) {
    if (!residency_by(method, file, {0, page_})) continue;
    EXPECT_EQ(residency_by(method, file, {200 * page_, 300 * page_})->resident_pages, 100U);
    EXPECT_EQ(residency_by(method, file, {200 * page_ + 1, 201 * page_ + 1})->pages, 2U) << "whole pages are counted";
    EXPECT_EQ(residency_by(method, file, {0, 200 * page_})->resident_pages, 0U);
    EXPECT_EQ(residency_by(method, file, {300 * page_, 512 * page_})->resident_pages, 0U);
    EXPECT_EQ(residency_by(method, file, {0, 1000 * page_})->pages, kPages) << "cut to the file";
    EXPECT_EQ(residency_by(method, file, {0, 1000 * page_})->resident_pages, 100U);
  }
}

TEST_F(ResidencyTest, AnEmptyRangeIsResident) {
  const File file = make(10);
  for (const ResidencyMethod method : kMethods) {
    for (const ByteRange range : {ByteRange{0, 0}, ByteRange{10, 10}, ByteRange{20, 30}, ByteRange{5, 5}}) {
      const auto found = residency_by(method, file, range);
      ASSERT_TRUE(found.has_value());
      EXPECT_EQ(found->share(), 1.0);
    }
  }
}

TEST_F(ResidencyTest, Fault37_AFileThatShrinksIsHarmless) {
  const File file = make(kPages * page_);
  ASSERT_EQ(::ftruncate(file.descriptor(), 10), 0);
  for (const ResidencyMethod method : kMethods) {
    const auto found = residency_by(method, file, {0, kPages * page_});
    if (found) {
      EXPECT_LE(found->resident_pages, kPages);  // a large folio may outlive what it held
    }
  }
}

TEST_F(ResidencyTest, UnknownWhereNothingCanBeAsked) {
  const std::string path = dir_.write("f", std::string(100, 'x'));
  const auto file = File::adopt(Fd(::open(path.c_str(), O_PATH | O_CLOEXEC)), path);
  ASSERT_TRUE(file.has_value());
  EXPECT_FALSE(residency(*file, {0, 100}).has_value());
}

TEST(FileSystemOf, MemoryAndDisk) {
  ::setenv("TMPDIR", "/dev/shm", 1);
  const test::TempDir memory;
  ::unsetenv("TMPDIR");
  const std::string path = memory.write("f", std::string(10'000, 'x'));
  const auto file = File::adopt(Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), path);
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(file_system_of(*file), FileSystem::kMemory);
  const auto found = residency(*file, {0, 10'000});
  if (found) {
    EXPECT_EQ(found->share(), 1.0);
  }

  const test::TempDir disk;
  const std::string other = disk.write("f", "x");
  const auto on_disk = File::adopt(Fd(::open(other.c_str(), O_RDONLY | O_CLOEXEC)), other);
  ASSERT_TRUE(on_disk.has_value());
  struct statfs status {};
  ASSERT_EQ(::statfs(other.c_str(), &status), 0);
  EXPECT_EQ(file_system_of(*on_disk) == FileSystem::kExt, status.f_type == 0xEF53);
}

TEST(FileSystemWord, EachHasItsOwn) {
  EXPECT_EQ(word(FileSystem::kMemory), "memory");
  EXPECT_EQ(word(FileSystem::kExt), "ext");
  EXPECT_EQ(word(FileSystem::kNetwork), "network");
}

}  // namespace
}  // namespace lading::io
