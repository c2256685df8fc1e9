#include "io/new_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/temp_dir.h"

namespace lading::io {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class NewDirectoryTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::string place(const std::string& name = "out") const { return dir_.path(name); }
  [[nodiscard]] std::vector<std::string> names(const std::string& below = "") const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(dir_.path(below))) {
      found.push_back(entry.path().filename());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  // One that holds a file.
  [[nodiscard]] NewDirectory filled(IfExists if_exists = IfExists::kRefuse) const {
    auto made = NewDirectory::create(place(), if_exists);
    LADING_CHECK(made.has_value());
    LADING_CHECK(made->write_file("file", "new").has_value());
    return *std::move(made);
  }

  test::TempDir dir_;
};

TEST_F(NewDirectoryTest, NothingIsAtThePlaceBeforeAllOfItIs) {
  auto made = NewDirectory::create(place(), IfExists::kRefuse);
  ASSERT_TRUE(made) << made.error().text();
  EXPECT_THAT(names(), ElementsAre(StartsWith(".lading-save.out.")));
  const auto fd = made->create_file("a/b/shard", 1000);
  ASSERT_TRUE(fd) << fd.error().text();
  EXPECT_EQ(std::filesystem::file_size(made->path_of("a/b/shard")), 1000U);
  // Another process opens it by its name.
  const auto same = NewDirectory::open(place() + "/", made->temporary());
  ASSERT_TRUE(same) << same.error().text();
  const auto again = same->open_file("a/b/shard", 1000);
  ASSERT_TRUE(again) << again.error().text();
  const std::string text = "hello";
  ASSERT_TRUE(write_exact(again->get(), 990, std::as_bytes(std::span(text)), "shard"));
  ASSERT_TRUE(made->sync());
  const auto replaced = made->commit(IfExists::kRefuse);
  ASSERT_TRUE(replaced) << replaced.error().text();
  EXPECT_FALSE(*replaced);
  EXPECT_THAT(names(), ElementsAre("out"));
  EXPECT_EQ(dir_.read("out/a/b/shard").substr(990, 5), "hello");
}

TEST_F(NewDirectoryTest, WhatStandsAtThePlaceStays) {
  dir_.write("out/old", "before");
  const auto refused = NewDirectory::create(place(), IfExists::kRefuse);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kUsage);
  EXPECT_THAT(names(), ElementsAre("out"));
  // Also what appears only later, and also if it is empty.
  std::filesystem::remove_all(place());
  NewDirectory made = filled();
  dir_.mkdir("out");
  const auto late = made.commit(IfExists::kRefuse);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::kUsage);
  EXPECT_THAT(names("out"), IsEmpty());
  EXPECT_TRUE(made.discard().value());
  EXPECT_FALSE(made.discard().value());
  EXPECT_THAT(names(), ElementsAre("out"));
}

TEST_F(NewDirectoryTest, AnOldDirectoryGivesWayInOneStep) {
  dir_.write("out/old/deep/file", "before");
  dir_.write("outside", "stays");
  dir_.link("out/link", "../outside");
  NewDirectory made = filled(IfExists::kReplace);
  EXPECT_THAT(names(made.temporary()), ElementsAre("file"));
  EXPECT_EQ(dir_.read("out/old/deep/file"), "before");
  const auto replaced = made.commit(IfExists::kReplace);
  ASSERT_TRUE(replaced) << replaced.error().text();
  EXPECT_TRUE(*replaced);
  EXPECT_THAT(names(), ElementsAre("out", "outside"));
  EXPECT_THAT(names("out"), ElementsAre("file"));
  EXPECT_EQ(dir_.read("outside"), "stays");
}

TEST_F(NewDirectoryTest, OnlyADirectoryGivesWay) {
  dir_.write("out", "a file");
  EXPECT_FALSE(NewDirectory::create(place(), IfExists::kReplace));
  dir_.mkdir("real");
  dir_.link("link", "real");
  EXPECT_FALSE(NewDirectory::create(place("link"), IfExists::kReplace));
  for (const char* const name : {"", "/", ".", "no/such/parent/out"}) {
    EXPECT_FALSE(NewDirectory::create(*name == 'n' ? place(name) : std::string(name), IfExists::kReplace)) << name;
  }
  EXPECT_THAT(names(), ElementsAre("link", "out", "real"));
}

TEST_F(NewDirectoryTest, ANameThatIsTooLongIsRefusedBeforeAnythingIsMade) {
  for (const std::size_t size : {226U, 255U, 256U}) {
    const auto made = NewDirectory::create(place(std::string(size, 'x')), IfExists::kRefuse);
    ASSERT_FALSE(made) << size;
    EXPECT_EQ(made.error().code, Code::kUsage);
    EXPECT_THAT(made.error().text(), HasSubstr("225 bytes"));
  }
  EXPECT_THAT(names(), IsEmpty());
  EXPECT_TRUE(NewDirectory::create(place(std::string(225, 'x')), IfExists::kRefuse));
}

TEST_F(NewDirectoryTest, LinksAreFollowedBeforeAParentIsTaken) {
  dir_.mkdir("elsewhere/deep");
  dir_.link("link", "elsewhere/deep");
  const auto made = NewDirectory::create(place("link/../out"), IfExists::kRefuse);
  ASSERT_TRUE(made) << made.error().text();
  EXPECT_THAT(names("elsewhere"), ElementsAre(made->temporary(), "deep"));
  EXPECT_TRUE(std::filesystem::exists(made->path()));
}

TEST_F(NewDirectoryTest, LeftoversAreRemovedAndSavesUnderWayAreNot) {
  std::string left;
  { left = filled().temporary(); }  // nobody has it locked any more
  const NewDirectory under_way = filled();
  EXPECT_THAT(under_way.removed(), ElementsAre(left));
  // Of another place, or not ours at all.
  dir_.mkdir(".lading-save.other.0123456789abcdef");
  dir_.mkdir(".lading-save.out.notdigits0123456");
  const auto made = NewDirectory::create(place(), IfExists::kRefuse);
  ASSERT_TRUE(made) << made.error().text();
  EXPECT_THAT(made->removed(), IsEmpty());
  EXPECT_EQ(names().size(), 4U);
}

TEST_F(NewDirectoryTest, NoNameLeadsOutside) {
  const NewDirectory made = filled();
  dir_.write("outside", "stays");
  dir_.link(made.temporary() + "/link", "../outside");
  dir_.link(made.temporary() + "/folder", "..");
  for (const char* const name : {"../outside", "link", "folder/outside", "", ".", "a/../b", "a//b", "/outside"}) {
    EXPECT_FALSE(made.create_file(name, 1)) << name;
    EXPECT_FALSE(made.open_file(name, 5)) << name;
  }
  EXPECT_EQ(dir_.read("outside"), "stays");
  for (const char* const name : {"../out", "out", ".lading-save.other.0123456789abcdef", ".lading-save.out."}) {
    EXPECT_FALSE(NewDirectory::open(place(), name)) << name;
    EXPECT_FALSE(NewDirectory::discard(place(), name)) << name;
  }
}

TEST_F(NewDirectoryTest, AFileOfAnotherSizeIsNotOurs) {
  const NewDirectory made = filled();
  const auto opened = made.open_file("file", 4);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kWriteFailed);
  EXPECT_FALSE(made.create_file("file", 3)) << "it is there already";
}

TEST_F(NewDirectoryTest, Fault47_AFileThatCannotBeReservedIsNamed) {
  const auto reserve_too_much = [&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const auto made = NewDirectory::create(place(), IfExists::kRefuse);
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto file = made->create_file("shard", 5000);
    const bool is_told = !file && file.error().message.find("too large") != std::string::npos &&
                         file.error().file.find("shard") != std::string::npos && !file.error().remedy.empty();
    std::_Exit(is_told ? 0 : 1);
  };
  EXPECT_EXIT(reserve_too_much(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace lading::io
