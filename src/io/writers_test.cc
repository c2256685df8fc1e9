#include "io/writers.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <ctime>
#include <string>

#include "io/residency.h"
#include "support/temp_dir.h"

namespace lading::io {
namespace {

using std::chrono::milliseconds;

class WritersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = dir_.write("f", std::string(4096, 'x'));
    if (writers_of(open()) == Writers::kUnknown) GTEST_SKIP() << "no leases here";
  }

  [[nodiscard]] File open() const { return *File::adopt(Fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)), path_); }
  [[nodiscard]] Fd open_to_write() const { return Fd(::open(path_.c_str(), O_RDWR | O_CLOEXEC)); }

  // So many seconds from now on.
  void set_mtime(std::time_t seconds) const {
    const timespec time{std::time(nullptr) + seconds, 1};
    const std::array<timespec, 2> times = {time, time};
    ASSERT_EQ(::utimensat(AT_FDCWD, path_.c_str(), times.data(), 0), 0);
  }

  test::TempDir dir_;
  std::string path_;
};

TEST_F(WritersTest, AFileThatWasJustClosedIsSettledAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(is_settled(open()));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(500)) << "a save is followed by a load";
}

TEST_F(WritersTest, SettledMeansThatEveryLaterWriteIsSeen) {
  for (int i = 0; i < 40; ++i) {
    dir_.write("f", std::string(4096, 'y'));
    const File file = open();
    ASSERT_TRUE(is_settled(file));
    ASSERT_EQ(::pwrite(open_to_write().get(), "z", 1, 0), 1);
    EXPECT_FALSE(file.check_unchanged().has_value()) << "the same tick of the clock";
  }
}

TEST_F(WritersTest, AWriterIsSeenAsLongAsItHasTheFileOpen) {
  {
    const Fd writer = open_to_write();
    EXPECT_EQ(writers_of(open()), Writers::kSome);
    set_mtime(-86400);
    EXPECT_FALSE(is_settled(open())) << "however old the file is";
  }
  EXPECT_EQ(writers_of(open()), Writers::kNone);
}

TEST_F(WritersTest, AMappingIsAWriter) {
  void* memory = nullptr;
  {
    const Fd writer = open_to_write();
    memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, writer.get(), 0);
    ASSERT_NE(memory, MAP_FAILED);
  }
  EXPECT_EQ(writers_of(open()), Writers::kSome);
  ::munmap(memory, 4096);
  EXPECT_EQ(writers_of(open()), Writers::kNone);
}

TEST_F(WritersTest, ReadersAreNoWriters) {
  const File other = open();
  EXPECT_EQ(writers_of(open()), Writers::kNone);
  EXPECT_EQ(writers_of(other), Writers::kNone);
}

TEST_F(WritersTest, NoLeaseIsLeftBehind) {
  const File file = open();
  ASSERT_EQ(writers_of(file), Writers::kNone);
  const Fd writer(::open(path_.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  EXPECT_TRUE(writer.valid()) << "who opens it for writing need not wait";
}

TEST_F(WritersTest, WritersThatOpenMeanwhileDoNotEndTheProcess) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (int i = 0; i < 4000; ++i) ::close(::open(path_.c_str(), O_WRONLY | O_CLOEXEC));
    ::_exit(0);
  }
  const File file = open();
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) EXPECT_NE(writers_of(file), Writers::kUnknown);
  EXPECT_EQ(status, 0);
}

TEST_F(WritersTest, WhereNobodyKnowsTheAgeDecides) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs another user";
  const pid_t child = ::fork();
  if (child == 0) {  // neither the owner, nor allowed to take leases of others
    ::chmod(dir_.path().c_str(), 0755);
    ::chmod(path_.c_str(), 0644);
    if (::setuid(65534) != 0) ::_exit(9);
    int wrong = writers_of(open()) == Writers::kUnknown ? 0 : 1;
    if (is_settled(open())) wrong |= 2;
    ::_exit(wrong);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1: the lease was given; 2: a young file is settled";
  set_mtime(-3600);
  const pid_t old = ::fork();
  if (old == 0) ::_exit(::setuid(65534) == 0 && is_settled(open()) ? 0 : 1);
  ::waitpid(old, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(WritersTest, FractionsOfSecondsThatAreMissingAreNotTrusted) {
  const timespec time{std::time(nullptr), 0};
  const std::array<timespec, 2> times = {time, time};
  ASSERT_EQ(::utimensat(AT_FDCWD, path_.c_str(), times.data(), 0), 0);
  EXPECT_FALSE(is_settled(open())) << "a write in the same second might leave the mtime as it is";
}

TEST_F(WritersTest, AClockThatIsNotOursCostsAtMostTheWriteTime) {
  set_mtime(86400);
  EXPECT_EQ(time_to_settle(open().identity()), kWriteTime);
  EXPECT_TRUE(is_settled(open())) << "no write of today sets an mtime of tomorrow";
  set_mtime(-86400);
  EXPECT_EQ(time_to_settle(open().identity()), milliseconds(0));
  set_mtime(-1);
  EXPECT_LE(time_to_settle(open().identity()), milliseconds(1001));
}

}  // namespace
}  // namespace lading::io
