#include "io/write_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "support/temp_dir.h"

namespace lading::io {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class WriteFile : public ::testing::TestWithParam<Temporary> {
 protected:
  [[nodiscard]] Result<void> write(std::string_view name, std::string_view content, Overwrite overwrite) const {
    return write_file(dir_.path(name), content, {overwrite, GetParam()});
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) found.push_back(entry.path().filename());
    std::sort(found.begin(), found.end());
    return found;
  }

  test::TempDir dir_;
};

TEST_P(WriteFile, WritesAllOfItAndNothingElse) {
  const std::string content(3'000'000, 'x');
  ASSERT_TRUE(write("new", content, Overwrite::kNever).has_value());
  EXPECT_EQ(dir_.read("new"), content);
  ASSERT_TRUE(write("empty", "", Overwrite::kRegularFile).has_value());
  EXPECT_THAT(names(), ElementsAre("empty", "new"));
}

TEST_P(WriteFile, AFileGivesWayOnlyIfItMay) {
  dir_.write("old", "before");
  EXPECT_FALSE(write("old", "after", Overwrite::kNever).has_value());
  EXPECT_EQ(dir_.read("old"), "before");
  EXPECT_TRUE(write("old", "after", Overwrite::kRegularFile).has_value());
  EXPECT_EQ(dir_.read("old"), "after");
  EXPECT_THAT(names(), ElementsAre("old"));
}

TEST_P(WriteFile, NoLinkIsFollowed) {
  dir_.write("victim", "before");
  dir_.link("link", "victim");
  dir_.link("nowhere", "created");
  for (const Overwrite overwrite : {Overwrite::kNever, Overwrite::kRegularFile}) {
    for (const char* const name : {"link", "nowhere"}) {
      const auto written = write(name, "after", overwrite);
      ASSERT_FALSE(written.has_value()) << name;
      EXPECT_EQ(written.error().code, Code::kWriteFailed);
      EXPECT_THAT(written.error().message, HasSubstr("symbolic link"));
    }
  }
  EXPECT_EQ(dir_.read("victim"), "before");
  EXPECT_THAT(names(), ElementsAre("link", "nowhere", "victim"));
}

TEST_P(WriteFile, OnlyRegularFilesGiveWay) {
  ASSERT_EQ(::mkfifo(dir_.path("fifo").c_str(), 0600), 0);
  dir_.mkdir("folder");
  EXPECT_FALSE(write("fifo", "x", Overwrite::kRegularFile).has_value());
  EXPECT_FALSE(write("folder", "x", Overwrite::kRegularFile).has_value());
  EXPECT_FALSE(write("no/such/folder", "x", Overwrite::kRegularFile).has_value());
  EXPECT_FALSE(write("folder/", "x", Overwrite::kRegularFile).has_value());
  EXPECT_THAT(names(), ElementsAre("fifo", "folder"));
}

TEST_P(WriteFile, TheUmaskDecidesWhoMayRead) {
  const mode_t before = ::umask(027);
  ASSERT_TRUE(write("new", "x", Overwrite::kNever).has_value());
  ::umask(before);
  struct stat status = {};
  ASSERT_EQ(::stat(dir_.path("new").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0640U);
}

TEST_P(WriteFile, NothingIsLeftOfAFileThatBecomesTooLarge) {
  dir_.write("old", "before");
  const auto write_too_much = [&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string content(5000, 'x');
    const auto over = write("old", content, Overwrite::kRegularFile);
    const auto anew = write("new", content, Overwrite::kNever);
    const bool is_told = !over && !anew && over.error().message.find("too large") != std::string::npos;
    std::_Exit(is_told ? 0 : 1);
  };
  // In a child: the limit and the signal are the process's.
  EXPECT_EXIT(write_too_much(), ::testing::ExitedWithCode(0), "");
  EXPECT_EQ(dir_.read("old"), "before");
  EXPECT_THAT(names(), ElementsAre("old"));
}

INSTANTIATE_TEST_SUITE_P(Ways, WriteFile, ::testing::Values(Temporary::kUnnamed, Temporary::kNamed),
                         [](const auto& way) { return way.param == Temporary::kNamed ? "Named" : "Unnamed"; });

}  // namespace
}  // namespace lading::io
