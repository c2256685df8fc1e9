#include "io/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "io/anchor.h"
#include "support/temp_dir.h"

namespace lading::io {
namespace {

using ::testing::HasSubstr;

class FileTest : public ::testing::Test {
 protected:
  Result<File> open(const std::string& path, int flags = O_RDONLY) {
    return File::adopt(Fd(::open(path.c_str(), flags | O_CLOEXEC)), path);
  }

  // As if it had been modified at this second; no waiting for the clock of the file system.
  static void set_mtime(const std::string& path, std::time_t second, long nanosecond) {
    const std::array<timespec, 2> times = {timespec{second, nanosecond}, timespec{second, nanosecond}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times.data(), 0), 0);
  }

  test::TempDir dir_;
};

TEST(Fd, ClosesAtTheEndAndMoves) {
  const int raw = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(raw, 0);
  {
    Fd first(raw);
    Fd second(std::move(first));
    EXPECT_EQ(second.get(), raw);
    Fd third;
    EXPECT_FALSE(third.valid());
    third = std::move(second);
    EXPECT_EQ(third.get(), raw);
    EXPECT_EQ(::fcntl(raw, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC) << "still open";
  }
  EXPECT_EQ(::fcntl(raw, F_GETFD), -1) << "closed";
}

TEST_F(FileTest, ReadsExactlyWhatIsAsked) {
  const auto file = open(dir_.write("f", "0123456789"));
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(file->size_bytes(), 10U);
  EXPECT_EQ(file->path(), dir_.path("f"));
  std::string out(4, '?');
  ASSERT_TRUE(file->read_exact(3, out).has_value());
  EXPECT_EQ(out, "3456");
  ASSERT_TRUE(file->read_exact(6, out).has_value()) << "up to the last byte";
  EXPECT_EQ(out, "6789");
  std::string all(10, '?');
  ASSERT_TRUE(file->read_exact(0, all).has_value());
  EXPECT_EQ(all, "0123456789");
}

TEST_F(FileTest, R45_TheEndOfTheFileIsAnError) {
  const auto file = open(dir_.write("f", "0123456789"));
  ASSERT_TRUE(file.has_value());
  std::string out(4, '?');
  for (const std::uint64_t offset : {7U, 9U, 10U, 11U, 1000U}) {
    const auto result = file->read_exact(offset, out);
    ASSERT_FALSE(result.has_value()) << offset;
    EXPECT_EQ(result.error().code, Code::kFileTruncated) << offset;
    EXPECT_EQ(result.error().file, dir_.path("f"));
    ASSERT_TRUE(result.error().bytes.has_value());
    EXPECT_EQ(result.error().bytes->end, offset + 4);
    EXPECT_EQ(result.error().bytes->begin, std::max<std::uint64_t>(offset, 10)) << "the first byte that is missing";
  }
}

TEST_F(FileTest, EmptySpanReadsNothing) {
  const auto file = open(dir_.write("f", "0123456789"));
  ASSERT_TRUE(file.has_value());
  EXPECT_TRUE(file->read_exact(0, {}).has_value());
  EXPECT_TRUE(file->read_exact(10, {}).has_value());
  const auto empty = open(dir_.write("empty", ""));
  ASSERT_TRUE(empty.has_value());
  EXPECT_EQ(empty->size_bytes(), 0U);
  EXPECT_TRUE(empty->read_exact(0, {}).has_value());
  std::string one(1, '?');
  EXPECT_FALSE(empty->read_exact(0, one).has_value());
}

TEST_F(FileTest, OffsetsThatOverflowAreRefused) {
  const auto file = open(dir_.write("f", "0123456789"));
  ASSERT_TRUE(file.has_value());
  std::string out(2, '?');
  for (const std::uint64_t offset : {~std::uint64_t{0}, std::uint64_t{1} << 63, (std::uint64_t{1} << 63) - 1}) {
    EXPECT_FALSE(file->read_exact(offset, out).has_value()) << offset;
  }
  EXPECT_EQ(out, "??");
}

TEST_F(FileTest, Fault37_TruncatedBehindOurBackIsAnErrorNotASignal) {
  const std::string path = dir_.write("f", std::string(100'000, 'x'));
  const auto file = open(path);
  ASSERT_TRUE(file.has_value());
  ASSERT_EQ(::truncate(path.c_str(), 10), 0);
  std::string out(100'000, '?');
  const auto result = file->read_exact(0, out);
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, Code::kFileTruncated);
  EXPECT_EQ(result.error().bytes->begin, 10U);
  EXPECT_FALSE(file->check_unchanged().has_value());
}

TEST_F(FileTest, ManyThreadsMayRead) {
  std::string content;
  for (int i = 0; i < 4096; ++i) content += static_cast<char>(i % 251);
  const auto file = open(dir_.write("f", content));
  ASSERT_TRUE(file.has_value());
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::string out(97, '?');
      for (std::uint64_t i = 0; i < 500; ++i) {
        const std::uint64_t offset = (t * 977 + i * 31) % (content.size() - out.size());
        if (!file->read_exact(offset, out) || content.compare(offset, out.size(), out) != 0) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(FileTest, S4_Fault18_OnlyRegularFilesAreAdopted) {
  ASSERT_EQ(::mkfifo(dir_.path("fifo").c_str(), 0600), 0);
  const std::pair<std::string, std::string> others[] = {
      {dir_.path(), "directory"}, {dir_.path("fifo"), "FIFO"}, {"/dev/null", "character device"}};
  for (const auto& [path, kind] : others) {
    const auto file = open(path, O_RDONLY | O_NONBLOCK);
    ASSERT_FALSE(file.has_value()) << path;
    EXPECT_EQ(file.error().code, Code::kNotRegularFile) << path;
    EXPECT_EQ(file.error().rule, "S4");
    EXPECT_EQ(file.error().file, path);
    EXPECT_THAT(file.error().found, HasSubstr(kind));
  }
}

TEST_F(FileTest, ABadDescriptorIsAnError) {
  const auto file = File::adopt(Fd(), "nowhere");
  ASSERT_FALSE(file.has_value());
  EXPECT_EQ(file.error().code, Code::kOpenFailed);
}

TEST_F(FileTest, ADescriptorThatMayNotReadIsAnErrorNotALoop) {
  const auto file = open(dir_.write("f", "0123456789"), O_WRONLY);
  ASSERT_TRUE(file.has_value());
  std::string out(2, '?');
  const auto result = file->read_exact(0, out);
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, Code::kReadFailed);
}

TEST_F(FileTest, Fault38_UnchangedUntilAppended) {
  const std::string path = dir_.write("f", "0123456789");
  set_mtime(path, 1'000'000, 5);
  const auto file = open(path);
  ASSERT_TRUE(file.has_value());
  EXPECT_TRUE(file->check_unchanged().has_value());
  {
    std::ofstream append(path, std::ios::app);
    append << "x";
  }
  set_mtime(path, 1'000'000, 5);  // even with the old time, the size tells
  const auto result = file->check_unchanged();
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, Code::kFileChanged);
  EXPECT_EQ(result.error().rule, "R45");
  EXPECT_EQ(result.error().file, path);
}

TEST_F(FileTest, Fault38_RewrittenWithTheSameSizeIsAChange) {
  const std::string path = dir_.write("f", "0123456789");
  set_mtime(path, 1'000'000, 5);
  const auto file = open(path);
  ASSERT_TRUE(file.has_value());
  dir_.write("f", "9876543210");
  EXPECT_FALSE(file->check_unchanged().has_value());
}

TEST_F(FileTest, Fault38_OneNanosecondIsAChange) {
  const std::string path = dir_.write("f", "0123456789");
  set_mtime(path, 1'000'000, 5);
  const auto file = open(path);
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(file->identity().mtime_s, 1'000'000);
  EXPECT_EQ(file->identity().mtime_ns, 5);
  set_mtime(path, 1'000'000, 6);
  EXPECT_FALSE(file->check_unchanged().has_value());
  set_mtime(path, 1'000'000, 5);
  EXPECT_TRUE(file->check_unchanged().has_value());
}

TEST_F(FileTest, Fault38_ReplacedByRenameHasAnotherIdentity) {
  const std::string path = dir_.write("f", "0123456789");
  set_mtime(path, 1'000'000, 5);
  const auto before = open(path);
  ASSERT_TRUE(before.has_value());
  set_mtime(dir_.write("g", "0123456789"), 1'000'000, 5);
  ASSERT_EQ(::rename(dir_.path("g").c_str(), path.c_str()), 0);
  const auto after = open(path);
  ASSERT_TRUE(after.has_value());
  EXPECT_NE(before->identity(), after->identity());
  EXPECT_EQ(before->identity().mtime_ns, after->identity().mtime_ns);
}

class OriginTest : public FileTest {
 protected:
  OriginTest() {
    dir_.write("in/f", "0123456789");
    dir_.link("in/alias", "f");
  }

  [[nodiscard]] Result<File> open_beneath(std::string_view relative) const {
    return Anchor::open(dir_.path("in"))->open_file(relative);  // the file outlives the anchor
  }

  static void expect_replaced(const File& file, std::string_view found) {
    const auto result = file.check_unchanged();
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code, Code::kFileChanged);
    EXPECT_EQ(result.error().rule, "R45");
    EXPECT_EQ(result.error().file, file.path());
    EXPECT_THAT(result.error().found, HasSubstr(std::string(found)));
    EXPECT_FALSE(result.error().remedy.empty());
  }
};

TEST_F(OriginTest, Fault38_ReplacedByRenameIsAChange) {
  const auto file = open_beneath("f");
  ASSERT_TRUE(file.has_value());
  EXPECT_TRUE(file->check_unchanged().has_value());
  dir_.write("g", "0123456789");
  ASSERT_EQ(::rename(dir_.path("g").c_str(), dir_.path("in/f").c_str()), 0);
  expect_replaced(*file, "inode");
  std::string out(10, '?');
  EXPECT_TRUE(file->read_exact(0, out).has_value()) << "the old file can still be read";
}

TEST_F(OriginTest, Fault38_ALinkThatLeadsElsewhereIsAChange) {
  dir_.write("in/g", "0123456789");
  const auto file = open_beneath("alias");
  ASSERT_TRUE(file.has_value());
  EXPECT_TRUE(file->check_unchanged().has_value());
  ASSERT_EQ(::unlink(dir_.path("in/alias").c_str()), 0);
  dir_.link("in/alias", "g");
  expect_replaced(*file, "inode");
  ASSERT_EQ(::unlink(dir_.path("in/alias").c_str()), 0);
  dir_.write("out", "");
  dir_.link("in/alias", "../out");
  expect_replaced(*file, "outside");
}

TEST_F(OriginTest, Fault38_RemovedOrADirectoryIsAChange) {
  const auto file = open_beneath("f");
  ASSERT_TRUE(file.has_value());
  ASSERT_EQ(::unlink(dir_.path("in/f").c_str()), 0);
  expect_replaced(*file, "no file");
  dir_.mkdir("in/f");
  expect_replaced(*file, "inode");
}

TEST_F(OriginTest, LinksModesAndAnotherNameOnTheWayAreNoChange) {
  const auto file = open_beneath("f");
  const auto through = open_beneath("alias");
  ASSERT_TRUE(file.has_value() && through.has_value());
  ASSERT_EQ(::link(dir_.path("in/f").c_str(), dir_.path("in/hard").c_str()), 0);
  ASSERT_EQ(::chmod(dir_.path("in/f").c_str(), 0400), 0);
  ASSERT_EQ(::unlink(dir_.path("in/alias").c_str()), 0);
  dir_.link("in/alias", "hard");
  EXPECT_TRUE(file->check_unchanged().has_value());
  EXPECT_TRUE(through->check_unchanged().has_value());
}

TEST_F(OriginTest, Fault38_RewrittenInPlaceIsAChange) {
  const std::string path = dir_.path("in/f");
  set_mtime(path, 1'000'000, 5);
  const auto file = open_beneath("f");
  ASSERT_TRUE(file.has_value());
  dir_.write("in/f", "9876543210");
  expect_replaced(*file, "modified at");
}

TEST(ErrnoText, SaysWhatAndWhich) { EXPECT_EQ(errno_text(ENOENT), "No such file or directory (2)"); }

}  // namespace
}  // namespace lading::io
