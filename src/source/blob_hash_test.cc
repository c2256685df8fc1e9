#include "source/blob_hash.h"

#include <gtest/gtest.h>

#include <string>

#include "io/anchor.h"
#include "support/temp_dir.h"

namespace lading::source {
namespace {

// sha256sum and git hash-object of "", "hello", and 4 MiB of zeros followed by "lading".
constexpr const char* kEmptySha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
constexpr const char* kEmptyGit = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391";
constexpr const char* kHelloSha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
constexpr const char* kHelloGit = "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0";
constexpr const char* kLongSha256 = "ab66ff3ecab2374b3eea5ddabcbc1c0a27364cb1eb7904f76b7a78ee7ecdde42";
constexpr const char* kLongGit = "bea3b0fcde01b48cd4424b77591c6ab3162143f8";

std::string hash_of(std::string_view content, HashKind kind) {
  const test::TempDir dir;
  dir.write("f", content);
  const auto anchor = io::Anchor::open(dir.path());
  const auto file = anchor->open_file("f");
  const auto hash = hash_file(*file, kind);
  return hash ? *hash : hash.error().text();
}

TEST(HashFile, KnownVectors) {
  EXPECT_EQ(hash_of("", HashKind::kSha256), kEmptySha256);
  EXPECT_EQ(hash_of("", HashKind::kGitSha1), kEmptyGit);
  EXPECT_EQ(hash_of("hello", HashKind::kSha256), kHelloSha256);
  EXPECT_EQ(hash_of("hello", HashKind::kGitSha1), kHelloGit);
}

TEST(HashFile, LongerThanOnePiece) {
  const std::string content = std::string(std::size_t{4} << 20, '\0') + "lading";
  EXPECT_EQ(hash_of(content, HashKind::kSha256), kLongSha256);
  EXPECT_EQ(hash_of(content, HashKind::kGitSha1), kLongGit);
}

TEST(HashFile, AFileThatShrinksIsAnErrorNotAHash) {
  const test::TempDir dir;
  dir.write("f", "hello");
  const auto anchor = io::Anchor::open(dir.path());
  const auto file = anchor->open_file("f");
  ASSERT_TRUE(file.has_value());
  std::filesystem::resize_file(dir.path("f"), 2);
  const auto hash = hash_file(*file, HashKind::kSha256);
  ASSERT_FALSE(hash.has_value());
  EXPECT_EQ(hash.error().code, Code::kFileTruncated);
}

TEST(PromisedHash, BlobsAreNamedByTheirHash) {
  const auto large = promised_hash(std::string("blobs/") + kHelloSha256);
  ASSERT_TRUE(large.has_value());
  EXPECT_EQ(large->kind, HashKind::kSha256);
  EXPECT_EQ(large->hex, kHelloSha256);
  const auto small = promised_hash(std::string("models--a--b/blobs/") + kHelloGit);
  ASSERT_TRUE(small.has_value());
  EXPECT_EQ(small->kind, HashKind::kGitSha1);
  EXPECT_EQ(small->hex, kHelloGit);
}

TEST(PromisedHash, NothingElseIsAPromise) {
  const std::string sha(kHelloSha256);
  std::string upper = sha;
  for (char& c : upper) c = c >= 'a' ? static_cast<char>(c - 32) : c;
  for (const std::string& path :
       {std::string(), sha, std::string("blobs/"), "blobs/" + sha.substr(1), "blobs/" + sha + "0", "blobs/" + upper,
        "blobs/" + sha.substr(0, 63) + "g", "blobs/" + sha.substr(0, 39), "blobs/" + sha.substr(0, 41),
        "snapshots/" + sha, "blobs/x/" + sha, "blobs/" + sha + "/", "blobs/" + sha + ".incomplete"}) {
    EXPECT_FALSE(promised_hash(path).has_value()) << path;
  }
}

TEST(PromisedHash, TheFolderIsCalledBlobsAndNotOnlyEndsSo) {
  EXPECT_FALSE(promised_hash(std::string("myblobs/") + kHelloSha256).has_value());
  EXPECT_FALSE(promised_hash(std::string("a/old-blobs/") + kHelloSha256).has_value());
}

}  // namespace
}  // namespace lading::source
