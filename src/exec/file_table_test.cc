#include "exec/file_table.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>
#include <vector>

#include "io/anchor.h"
#include "support/temp_dir.h"

namespace lading::exec {
namespace {

class FileTableTest : public testing::Test {
 protected:
  FileTableTest() {
    dir_.write("0", "zero");
    dir_.write("1", "one");
  }

  FileTable::Open opener() {
    return [this](std::uint32_t file) -> Result<io::File> {
      ++opened_[file];
      return anchor_.open_file(std::to_string(file));
    };
  }

  static bool is_open(int descriptor) { return ::fcntl(descriptor, F_GETFD) != -1; }

  void touch(const std::string& name) const {
    const std::string path = dir_.path(name);
    std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) + std::chrono::seconds(1));
  }

  test::TempDir dir_;
  io::Anchor anchor_ = *io::Anchor::open(dir_.path());
  std::atomic<int> opened_[2] = {};
};

TEST_F(FileTableTest, AFileIsOpenFromItsFirstTaskToItsLast) {
  FileTable files(opener(), 2);
  for (int i = 0; i < 3; ++i) files.expect(1);
  EXPECT_EQ(opened_[1], 0);
  const auto first = files.acquire(1);
  ASSERT_TRUE(first);
  const int descriptor = (*first)->descriptor();
  std::string bytes(3, '?');
  ASSERT_TRUE((*first)->read_exact(0, bytes));
  EXPECT_EQ(bytes, "one");
  for (int task = 0; task < 3; ++task) {
    const auto again = files.acquire(1);
    ASSERT_TRUE(again);
    EXPECT_EQ(*again, *first);
    EXPECT_TRUE(is_open(descriptor)) << "task " << task;
    EXPECT_TRUE(files.release(1));
  }
  EXPECT_FALSE(is_open(descriptor));
  EXPECT_EQ(opened_[1], 1);
  EXPECT_EQ(opened_[0], 0) << "nobody asked for it";
}

TEST_F(FileTableTest, ThreadsShareOneDescriptor) {
  constexpr int kTasks = 400;
  FileTable files(opener(), 2);
  for (std::uint32_t i = 0; i < kTasks; ++i) files.expect(i % 2);
  std::atomic<std::uint32_t> next = 0;
  std::vector<std::jthread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (std::uint32_t i = next++; i < kTasks; i = next++) {
        EXPECT_TRUE(files.acquire(i % 2));
        EXPECT_TRUE(files.release(i % 2));
      }
    });
  }
  threads.clear();
  EXPECT_EQ(opened_[0], 1);
  EXPECT_EQ(opened_[1], 1);
}

TEST_F(FileTableTest, ATaskThatDoesNotReadReleasesToo) {
  FileTable files(opener(), 2);
  files.expect(0);
  files.expect(0);
  const auto file = files.acquire(0);
  ASSERT_TRUE(file);
  const int descriptor = (*file)->descriptor();
  EXPECT_TRUE(files.release(0));
  EXPECT_TRUE(is_open(descriptor));
  EXPECT_TRUE(files.release(0));
  EXPECT_FALSE(is_open(descriptor));
}

TEST_F(FileTableTest, R45_AFileThatWasWrittenToIsRefusedAfterItsLastTask) {
  FileTable files(opener(), 2);
  files.expect(0);
  files.expect(0);
  files.expect(1);
  ASSERT_TRUE(files.acquire(0));
  ASSERT_TRUE(files.acquire(1));
  touch("0");
  EXPECT_TRUE(files.release(0)) << "another task still reads";
  const auto last = files.release(0);
  ASSERT_FALSE(last);
  EXPECT_EQ(last.error().code, Code::kFileChanged);
  EXPECT_EQ(last.error().rule, "R45");
  EXPECT_TRUE(files.release(1)) << "the other file is as it was";
}

TEST_F(FileTableTest, R45_AFileThatWasReplacedIsRefusedAfterItsLastTask) {
  FileTable files(opener(), 2);
  files.expect(0);
  ASSERT_TRUE(files.acquire(0));
  dir_.write("new", "zero");
  ASSERT_EQ(std::rename(dir_.path("new").c_str(), dir_.path("0").c_str()), 0);
  const auto last = files.release(0);
  ASSERT_FALSE(last);
  EXPECT_EQ(last.error().code, Code::kFileChanged);
}

TEST_F(FileTableTest, AFileThatCannotBeOpenedIsToldToEveryTask) {
  FileTable files(opener(), 2);
  files.expect(0);
  files.expect(0);
  std::filesystem::remove(dir_.path("0"));
  for (int task = 0; task < 2; ++task) {
    const auto file = files.acquire(0);
    ASSERT_FALSE(file);
    EXPECT_EQ(file.error().code, Code::kNotFound);
    EXPECT_TRUE(files.release(0)) << "nothing was read, so nothing has changed";
  }
}

TEST_F(FileTableTest, DoubtfulFilesAreListed) {
  const auto open = [this](std::uint32_t file) -> Result<io::File> {
    auto opened = opener()(file);
    if (opened && file == 1) opened->doubt();
    return opened;
  };
  FileTable files(open, 2);
  for (const std::uint32_t file : {0U, 1U}) {
    files.expect(file);
    ASSERT_TRUE(files.acquire(file));
    EXPECT_TRUE(files.release(file));
  }
  EXPECT_EQ(files.take_doubtful(), std::set<std::uint32_t>{1});
}

}  // namespace
}  // namespace lading::exec
