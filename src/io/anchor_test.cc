#include "io/anchor.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "support/temp_dir.h"

namespace lading::io {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// `in` is the anchor; `out` lies beside it and must never be reached.
class AnchorTest : public ::testing::Test {
 protected:
  AnchorTest() : anchor_(open_anchor()) {
    dir_.write("out/secret", "outside");
    dir_.write("inside-out/secret", "outside");
  }

  Anchor open_anchor() {
    auto anchor = Anchor::open(dir_.mkdir("in"));
    if (!anchor) std::abort();
    return *std::move(anchor);
  }

  std::string content(std::string_view relative) const {
    const auto file = anchor_.open_file(relative);
    if (!file) return std::string("error: ") + std::string(word(file.error().code));
    std::string text(file->size_bytes(), '?');
    return file->read_exact(0, text) ? text : "error: read";
  }

  void expect_outside(std::string_view relative) const {
    for (const auto& error :
         {anchor_.open_file(relative).error(), anchor_.resolve(relative).error(), anchor_.list(relative).error()}) {
      EXPECT_EQ(error.code, Code::kOutsideRoot) << relative;
      EXPECT_EQ(error.rule, "S4") << relative;
    }
  }

  test::TempDir dir_;
  Anchor anchor_;
};

TEST_F(AnchorTest, OpensFilesBeneathIt) {
  dir_.write("in/a", "A");
  dir_.write("in/sub/deep/b", "B");
  EXPECT_EQ(content("a"), "A");
  EXPECT_EQ(content("sub/deep/b"), "B");
  EXPECT_EQ(content("./sub//deep/./b"), "B");
  EXPECT_EQ(anchor_.open_file("sub/deep/b")->path(), dir_.path("in/sub/deep/b"));
  EXPECT_EQ(anchor_.path(), dir_.path("in"));
  EXPECT_EQ(anchor_.display("x/y"), dir_.path("in/x/y"));
  EXPECT_EQ(anchor_.display(""), dir_.path("in"));
}

TEST_F(AnchorTest, OpenFollowsTheUsersLinksAndRefusesWhatIsNoDirectory) {
  dir_.link("alias", "in");
  const auto anchor = Anchor::open(dir_.path("alias"));
  ASSERT_TRUE(anchor.has_value());
  EXPECT_EQ(anchor->path(), dir_.path("in"));
  EXPECT_EQ(Anchor::open(dir_.path("nothing")).error().code, Code::kNotFound);
  dir_.write("file", "x");
  EXPECT_EQ(Anchor::open(dir_.path("file")).error().code, Code::kNotFound);
  dir_.link("loop", "loop");
  EXPECT_EQ(Anchor::open(dir_.path("loop")).error().code, Code::kSymlinkLoop);
}

TEST_F(AnchorTest, WhatIsNotThereIsNotFound) {
  dir_.write("in/a", "A");
  EXPECT_EQ(content("b"), "error: not_found");
  EXPECT_EQ(content("no/b"), "error: not_found");
  EXPECT_EQ(content("a/b"), "error: not_found") << "a file is no directory";
  EXPECT_EQ(content("a/../a"), "error: not_found") << "nor for a moment";
  EXPECT_EQ(content("a/"), "error: not_found");
  EXPECT_EQ(content("a/."), "error: not_found");
  EXPECT_EQ(anchor_.open_file("b").error().file, dir_.path("in/b"));
}

TEST_F(AnchorTest, S4_DotDotStaysBeneath) {
  dir_.write("in/a", "A");
  dir_.mkdir("in/sub/deep");
  EXPECT_EQ(content("sub/../a"), "A");
  EXPECT_EQ(content("sub/deep/../../a"), "A");
  for (const char* path :
       {"..", "../in/a", "../out/secret", "sub/../../out/secret", "sub/deep/../../../in/a", "./.."}) {
    expect_outside(path);
  }
}

TEST_F(AnchorTest, Fault17_AbsolutePathsAndNulAreRefused) {
  dir_.write("in/a", "A");
  expect_outside("/etc/passwd");
  expect_outside(dir_.path("in/a"));
  expect_outside("//a");
  expect_outside(std::string_view("a\0", 2));
  expect_outside(std::string_view("a\0/../../out", 12));
}

TEST_F(AnchorTest, RelativeLinksBeneathAreFollowed) {
  dir_.write("in/blobs/1", "one");
  dir_.link("in/snap/x", "../blobs/1");
  dir_.link("in/direct", "blobs/1");
  dir_.link("in/dir", "blobs");
  dir_.link("in/snap/chain", "../direct");
  for (const char* path : {"snap/x", "direct", "dir/1", "snap/chain", "dir/../direct"})
    EXPECT_EQ(content(path), "one") << path;
}

TEST_F(AnchorTest, AbsoluteLinksAreFollowedBeneathOnly) {
  dir_.write("in/blobs/1", "one");
  dir_.link("in/inside", dir_.path("in/blobs/1"));
  dir_.link("in/self", dir_.path("in"));
  EXPECT_EQ(content("inside"), "one");
  EXPECT_EQ(content("self/blobs/1"), "one");
  EXPECT_EQ(content("self/self/inside"), "one");
  dir_.link("in/outside", dir_.path("out/secret"));
  dir_.link("in/prefix", dir_.path("inside-out/secret"));
  dir_.link("in/climbs", dir_.path("in") + "/../out/secret");
  dir_.link("in/etc", "/etc");
  for (const char* path : {"outside", "prefix", "climbs", "etc", "etc/passwd"}) expect_outside(path);
}

TEST_F(AnchorTest, Fault18_RelativeLinksOutAreRefused) {
  dir_.mkdir("in/sub");
  dir_.link("in/up", "../out/secret");
  dir_.link("in/updir", "..");
  dir_.link("in/sub/up", "../../out/secret");
  dir_.link("in/back", "../in/a");
  dir_.link("in/chain", "up");
  for (const char* path : {"up", "updir", "updir/out/secret", "sub/up", "back", "chain"}) expect_outside(path);
}

TEST_F(AnchorTest, LoopsEnd) {
  dir_.link("in/self", "self");
  dir_.link("in/ping", "pong");
  dir_.link("in/pong", "ping");
  dir_.link("in/grow", "grow/grow");
  for (const char* path : {"self", "ping", "grow", "self/x"}) EXPECT_EQ(content(path), "error: symlink_loop") << path;
}

TEST_F(AnchorTest, FortyLinksAreFollowedAsLinuxDoes) {
  dir_.write("in/link0", "end");
  for (int i = 1; i <= 41; ++i) dir_.link("in/link" + std::to_string(i), "link" + std::to_string(i - 1));
  EXPECT_EQ(content("link40"), "end");
  EXPECT_EQ(content("link41"), "error: symlink_loop");
}

TEST_F(AnchorTest, DanglingLinksAreNotFound) {
  dir_.link("in/dangling", "nothing");
  dir_.link("in/deep", dir_.path("in/no/thing"));
  EXPECT_EQ(content("dangling"), "error: not_found");
  EXPECT_EQ(content("deep"), "error: not_found");
}

TEST_F(AnchorTest, Fault18_FifoDoesNotBlock) {
  ASSERT_EQ(::mkfifo(dir_.path("in/fifo").c_str(), 0600), 0);
  dir_.link("in/to-fifo", "fifo");
  const auto start = std::chrono::steady_clock::now();
  for (const char* path : {"fifo", "to-fifo"}) {
    const auto file = anchor_.open_file(path);
    ASSERT_FALSE(file.has_value());
    EXPECT_EQ(file.error().code, Code::kNotRegularFile);
    EXPECT_THAT(file.error().found, HasSubstr("FIFO"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

TEST_F(AnchorTest, Fault18_SocketDirectoryAndDevice) {
  const Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = dir_.path("in/socket");
  ASSERT_LT(path.size(), sizeof(address.sun_path));
  std::memcpy(static_cast<char*>(address.sun_path), path.c_str(), path.size());
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  dir_.mkdir("in/sub");
  dir_.link("in/to-sub", "sub");
  const std::pair<const char*, const char*> cases[] = {
      {"socket", "socket"}, {"sub", "directory"}, {"to-sub", "directory"}, {"", "directory"}};
  for (const auto& [name, kind] : cases) {
    const auto file = anchor_.open_file(name);
    ASSERT_FALSE(file.has_value()) << name;
    EXPECT_EQ(file.error().code, Code::kNotRegularFile) << name;
    EXPECT_THAT(file.error().found, HasSubstr(kind)) << name;
  }
  const auto dev = Anchor::open("/dev");
  ASSERT_TRUE(dev.has_value());
  for (const char* name : {"zero", "null"}) EXPECT_EQ(dev->open_file(name).error().code, Code::kNotRegularFile) << name;
}

TEST_F(AnchorTest, ResolveNormalisesAndFollows) {
  dir_.write("in/blobs/1", "one");
  dir_.mkdir("in/snap");
  dir_.link("in/snap/x", "../blobs/1");
  dir_.link("in/abs", dir_.path("in/blobs"));
  EXPECT_EQ(*anchor_.resolve("blobs/1"), "blobs/1");
  EXPECT_EQ(*anchor_.resolve("snap/x"), "blobs/1");
  EXPECT_EQ(*anchor_.resolve("./snap/../abs//1"), "blobs/1");
  EXPECT_EQ(*anchor_.resolve("abs"), "blobs");
  EXPECT_EQ(*anchor_.resolve(""), "");
  EXPECT_EQ(*anchor_.resolve("snap/.."), "");
  EXPECT_EQ(anchor_.resolve("snap/none").error().code, Code::kNotFound);
}

TEST_F(AnchorTest, ListIsSortedAndWhole) {
  for (const char* name : {"b", "a", ".hidden", "B", "a b", "\xFF"}) dir_.write("in/sub/" + std::string(name), "");
  dir_.mkdir("in/sub/c/d");
  dir_.link("in/alias", "sub");
  EXPECT_THAT(*anchor_.list("sub"), ElementsAre(".hidden", "B", "a", "a b", "b", "c", "\xFF"));
  EXPECT_THAT(*anchor_.list("alias"), ElementsAre(".hidden", "B", "a", "a b", "b", "c", "\xFF"));
  EXPECT_THAT(*anchor_.list(""), ElementsAre("alias", "sub"));
  EXPECT_THAT(*anchor_.list("sub/c/d"), ElementsAre());
  EXPECT_EQ(anchor_.list("sub/a").error().code, Code::kNotFound);
  EXPECT_EQ(anchor_.list("none").error().code, Code::kNotFound);
}

TEST_F(AnchorTest, KeepsItsDirectoryWhenTheNameMovesOn) {
  dir_.write("in/a", "A");
  ASSERT_EQ(::rename(dir_.path("in").c_str(), dir_.path("moved").c_str()), 0);
  dir_.link("in", "out");
  EXPECT_EQ(content("a"), "A");
  EXPECT_EQ(content("secret"), "error: not_found");
}

// A directory and a link to outside change places all the time; whoever wins, nothing of outside is read.
TEST_F(AnchorTest, Fault18_RaceBetweenDirectoryAndLinkNeverLeadsOutside) {
  dir_.write("in/d/deep/secret", "inside");
  dir_.write("out/deep/secret", "outside");
  dir_.link("in/l", "../out");
  const std::string directory = dir_.path("in/d");
  const std::string link = dir_.path("in/l");
  const auto swap = [&] {
    return ::syscall(SYS_renameat2, AT_FDCWD, directory.c_str(), AT_FDCWD, link.c_str(), RENAME_EXCHANGE) == 0;
  };
  if (!swap()) GTEST_SKIP() << "this file system cannot exchange names";
  ASSERT_EQ(content("d/deep/secret"), "error: outside_root") << "the link's turn";
  ASSERT_TRUE(swap());
  ASSERT_EQ(content("d/deep/secret"), "inside");

  std::atomic<bool> stop = false;
  std::thread swapper([&] {
    while (!stop) swap();
  });
  int inside = 0;
  int refused = 0;
  int wrong = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  // 2,000 opens at least, and until both sides have been seen.
  for (int i = 0; (i < 2000 || inside == 0 || refused == 0) && std::chrono::steady_clock::now() < deadline; ++i) {
    const std::string text = content("d/deep/secret");
    if (text == "inside") {
      ++inside;
    } else if (text.starts_with("error: ") && text != "error: read") {
      ++refused;
    } else {
      ++wrong;
    }
  }
  stop = true;
  swapper.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(inside, 0);
  EXPECT_GT(refused, 0);
  EXPECT_GE(inside + refused, 2000);
}

}  // namespace
}  // namespace lading::io
