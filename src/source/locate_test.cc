#include "source/locate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "support/temp_dir.h"

namespace lading::source {
namespace {

using ::testing::HasSubstr;

constexpr const char* kMain = "1111111111111111111111111111111111111111";
constexpr const char* kOther = "2222222222222222222222222222222222222222";

Environment environment_of(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

class LocateTest : public ::testing::Test {
 protected:
  LocateOptions options(std::map<std::string, std::string> variables = {}) const {
    LocateOptions made;
    made.environment = environment_of(std::move(variables));
    return made;
  }

  /// A repository as huggingface_hub lays it out, with two snapshots of one file each.
  void make_repo(const std::string& folder) const {
    dir_.write(folder + "/refs/main", kMain);
    dir_.write(folder + "/refs/v1", std::string(kOther) + "\n");
    dir_.write(folder + "/refs/refs/pr/1", kOther);
    dir_.write(folder + "/blobs/b1", "one");
    for (const char* commit : {kMain, kOther}) {
      dir_.link(folder + "/snapshots/" + commit + "/model.safetensors", "../../blobs/b1");
    }
  }

  static std::string main_snapshot() { return std::string("snapshots/") + kMain; }
  static std::string other_snapshot() { return std::string("snapshots/") + kOther; }

  test::TempDir dir_;
};

TEST_F(LocateTest, Directory) {
  const std::string path = dir_.mkdir("ckpt");
  for (const std::string& typed : {path, path + "/", path + "/.", dir_.path("ckpt/../ckpt")}) {
    const auto location = locate(typed, options());
    ASSERT_TRUE(location.has_value()) << typed;
    EXPECT_EQ(location->kind, LocationKind::kDirectory);
    EXPECT_EQ(location->anchor.path(), path);
    EXPECT_EQ(location->relative, "");
    EXPECT_FALSE(location->in_hub_cache);
  }
}

TEST_F(LocateTest, DirectoryThroughALinkIsTheUsersWord) {
  dir_.mkdir("ckpt");
  const auto location = locate(dir_.link("alias", "ckpt"), options());
  ASSERT_TRUE(location.has_value());
  EXPECT_EQ(location->anchor.path(), dir_.path("ckpt"));
}

TEST_F(LocateTest, FileAndIndex) {
  const auto file = locate(dir_.write("ckpt/x.safetensors", "x"), options());
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(file->kind, LocationKind::kFile);
  EXPECT_EQ(file->anchor.path(), dir_.path("ckpt"));
  EXPECT_EQ(file->relative, "x.safetensors");
  const auto index = locate(dir_.write("ckpt/x.safetensors.index.json", "{}"), options());
  ASSERT_TRUE(index.has_value());
  EXPECT_EQ(index->kind, LocationKind::kIndex);
  EXPECT_EQ(index->relative, "x.safetensors.index.json");
  const auto odd = locate(dir_.write("ckpt/weights", "x"), options());
  ASSERT_TRUE(odd.has_value());
  EXPECT_EQ(odd->kind, LocationKind::kFile) << "whatever its name";
}

TEST_F(LocateTest, Fault18_AFileThatIsALinkOutIsStillAnchored) {
  dir_.write("out/secret.safetensors", "secret");
  dir_.link("ckpt/x.safetensors", "../out/secret.safetensors");
  const auto location = locate(dir_.path("ckpt/x.safetensors"), options());
  ASSERT_TRUE(location.has_value());
  EXPECT_EQ(location->anchor.path(), dir_.path("ckpt"));
  EXPECT_EQ(location->anchor.open_file(location->relative).error().code, Code::kOutsideRoot);
}

TEST_F(LocateTest, RootWidensTheAnchor) {
  dir_.write("a/out/secret", "secret");
  dir_.link("a/ckpt/x.safetensors", "../out/secret");
  LocateOptions with_root = options();
  with_root.root = dir_.path("a");
  const auto file = locate(dir_.path("a/ckpt/x.safetensors"), with_root);
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(file->anchor.path(), dir_.path("a"));
  EXPECT_EQ(file->relative, "ckpt/x.safetensors");
  EXPECT_TRUE(file->anchor.open_file(file->relative).has_value());
  const auto directory = locate(dir_.path("a/ckpt"), with_root);
  ASSERT_TRUE(directory.has_value());
  EXPECT_EQ(directory->anchor.path(), dir_.path("a"));
  EXPECT_EQ(directory->relative, "ckpt");
  with_root.root = dir_.path("a/ckpt");
  EXPECT_EQ(locate(dir_.path("a/ckpt"), with_root)->relative, "");
}

TEST_F(LocateTest, S4_TheCheckpointMustLieBeneathTheRoot) {
  dir_.write("ab/x.safetensors", "x");
  dir_.mkdir("a");
  LocateOptions with_root = options();
  with_root.root = dir_.path("a");
  for (const std::string& path : {dir_.path("ab"), dir_.path("ab/x.safetensors"), dir_.path()}) {
    const auto location = locate(path, with_root);
    ASSERT_FALSE(location.has_value()) << path;
    EXPECT_EQ(location.error().code, Code::kOutsideRoot);
    EXPECT_EQ(location.error().rule, "S4");
  }
  with_root.root = dir_.path("nothing");
  EXPECT_EQ(locate(dir_.path("ab"), with_root).error().code, Code::kNotFound);
}

TEST_F(LocateTest, WhatIsNoPathAndNoRepository) {
  for (const char* path : {"/no/such/place", "./nothing", "../nothing/at/all", "a/b/c", "a//b", "org/", "/name",
                           "a--b/c", "or g/name", ".hidden/name", "org/.name", "org/na\\me"}) {
    const auto location = locate(path, options({{"HF_HUB_CACHE", dir_.path()}}));
    ASSERT_FALSE(location.has_value()) << path;
    EXPECT_EQ(location.error().code, Code::kNotFound) << path;
  }
  EXPECT_EQ(locate("", options()).error().code, Code::kUsage);
  EXPECT_EQ(locate(std::string("a\0b", 3), options()).error().code, Code::kUsage);
}

TEST_F(LocateTest, RepositoryNameIsLookedUpInTheCache) {
  make_repo("hub/models--org--name");
  make_repo("hub/models--gpt2");
  LocateOptions options_here = options({{"HF_HUB_CACHE", dir_.path("hub")}});
  const auto location = locate("org/name", options_here);
  ASSERT_TRUE(location.has_value()) << location.error().text();
  EXPECT_EQ(location->kind, LocationKind::kDirectory);
  EXPECT_EQ(location->anchor.path(), dir_.path("hub/models--org--name"));
  EXPECT_EQ(location->relative, main_snapshot());
  EXPECT_TRUE(location->in_hub_cache);
  EXPECT_TRUE(location->anchor.open_file(location->relative + "/model.safetensors").has_value());
  EXPECT_EQ(locate("gpt2", options_here)->anchor.path(), dir_.path("hub/models--gpt2"));
  const auto missing = locate("org/other", options_here);
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code, Code::kNotFound);
  EXPECT_THAT(missing.error().text(), HasSubstr(dir_.path("hub/models--org--other"))) << "says where it looked";
  EXPECT_THAT(missing.error().remedy, HasSubstr("`hf download org/other`"));
  options_here.revision = "v1";
  EXPECT_THAT(locate("org/other", options_here).error().remedy, HasSubstr("`hf download org/other --revision v1`"));
  options_here.revision = "a b";
  EXPECT_THAT(locate("org/other", options_here).error().remedy, HasSubstr("`hf download org/other`"));
}

TEST_F(LocateTest, CacheIsWhereHuggingfaceHubLooks) {
  for (const char* place : {"one", "two", "three/hub", "four/huggingface/hub", "five/.cache/huggingface/hub"}) {
    make_repo(std::string(place) + "/models--org--name");
  }
  std::map<std::string, std::string> variables = {{"HF_HUB_CACHE", dir_.path("one")},
                                                  {"HUGGINGFACE_HUB_CACHE", dir_.path("two")},
                                                  {"HF_HOME", dir_.path("three")},
                                                  {"XDG_CACHE_HOME", dir_.path("four")},
                                                  {"HOME", dir_.path("five")}};
  const std::pair<const char*, const char*> order[] = {{"HF_HUB_CACHE", "one"},
                                                       {"HUGGINGFACE_HUB_CACHE", "two"},
                                                       {"HF_HOME", "three/hub"},
                                                       {"XDG_CACHE_HOME", "four/huggingface/hub"},
                                                       {"HOME", "five/.cache/huggingface/hub"}};
  for (const auto& [variable, place] : order) {
    const auto location = locate("org/name", options(variables));
    ASSERT_TRUE(location.has_value()) << variable;
    EXPECT_EQ(location->anchor.path(), dir_.path(place) + "/models--org--name");
    variables.erase(variable);
  }
  EXPECT_EQ(locate("org/name", options({})).error().code, Code::kNotFound);
}

TEST_F(LocateTest, RevisionIsABranchATagAPullRequestOrACommit) {
  make_repo("hub/models--org--name");
  LocateOptions with_revision = options({{"HF_HUB_CACHE", dir_.path("hub")}});
  const std::pair<std::string, std::string> cases[] = {
      {"main", main_snapshot()}, {"v1", other_snapshot()}, {"refs/pr/1", other_snapshot()}, {kOther, other_snapshot()}};
  for (const auto& [revision, snapshot] : cases) {
    with_revision.revision = revision;
    const auto location = locate("org/name", with_revision);
    ASSERT_TRUE(location.has_value()) << revision << location.error().text();
    EXPECT_EQ(location->relative, snapshot) << revision;
  }
  for (const char* revision : {"v2", "../../..", "/etc", "3333333333333333333333333333333333333333"}) {
    with_revision.revision = revision;
    EXPECT_EQ(locate("org/name", with_revision).error().code, Code::kNotFound) << revision;
  }
  with_revision.revision = "v2";
  EXPECT_THAT(locate("org/name", with_revision).error().remedy, HasSubstr("`hf download org/name --revision v2`"));
}

TEST_F(LocateTest, ARefThatNamesNoSnapshotIsRefused) {
  make_repo("hub/models--org--name");
  for (const char* content : {"", "\n", "not hex", "3333333333333333333333333333333333333333", "../../..", "v1"}) {
    dir_.write("hub/models--org--name/refs/main", content);
    const auto location = locate("org/name", options({{"HF_HUB_CACHE", dir_.path("hub")}}));
    ASSERT_FALSE(location.has_value()) << content;
    EXPECT_EQ(location.error().code, Code::kCacheInvalid) << content;
    EXPECT_EQ(location.error().file, dir_.path("hub/models--org--name/refs/main"));
  }
}

TEST_F(LocateTest, RepositoryFolder) {
  make_repo("hub/models--org--name");
  LocateOptions with_revision = options();
  const auto location = locate(dir_.path("hub/models--org--name"), with_revision);
  ASSERT_TRUE(location.has_value()) << location.error().text();
  EXPECT_EQ(location->relative, main_snapshot());
  EXPECT_TRUE(location->in_hub_cache);
  with_revision.revision = "v1";
  EXPECT_EQ(locate(dir_.path("hub/models--org--name/"), with_revision)->relative, other_snapshot());
}

// docs/reference/formats.md: a directory called models--… with a folder snapshots is a repository, before all else.
TEST_F(LocateTest, RepositoryFolderWithARootIsStillARepository) {
  make_repo("hub/models--org--name");
  LocateOptions with_root = options();
  with_root.root = dir_.path("hub");
  const auto location = locate(dir_.path("hub/models--org--name"), with_root);
  ASSERT_TRUE(location.has_value()) << location.error().text();
  EXPECT_THAT(location->relative, HasSubstr(main_snapshot()));
  EXPECT_TRUE(location->in_hub_cache);
}

TEST_F(LocateTest, SnapshotFolderAndFileInItAreAnchoredAtTheRepository) {
  make_repo("hub/models--org--name");
  const std::string snapshot = dir_.path("hub/models--org--name/") + main_snapshot();
  const auto folder = locate(snapshot, options());
  ASSERT_TRUE(folder.has_value());
  EXPECT_EQ(folder->kind, LocationKind::kDirectory);
  EXPECT_EQ(folder->anchor.path(), dir_.path("hub/models--org--name"));
  EXPECT_EQ(folder->relative, main_snapshot());
  EXPECT_TRUE(folder->in_hub_cache);
  const auto file = locate(snapshot + "/model.safetensors", options());
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(file->kind, LocationKind::kFile);
  EXPECT_EQ(file->anchor.path(), dir_.path("hub/models--org--name"));
  EXPECT_EQ(file->relative, main_snapshot() + "/model.safetensors");
  EXPECT_TRUE(file->in_hub_cache);
  EXPECT_TRUE(file->anchor.open_file(file->relative).has_value()) << "the link to the blob works";
}

TEST_F(LocateTest, S4_ASnapshotCannotLeaveItsRepository) {
  make_repo("hub/models--org--name");
  dir_.write("hub/models--org--other/blobs/b", "other");
  dir_.link("hub/models--org--name/snapshots/" + std::string(kMain) + "/evil.safetensors",
            "../../../models--org--other/blobs/b");
  const auto location = locate(dir_.path("hub/models--org--name/") + main_snapshot() + "/evil.safetensors", options());
  ASSERT_TRUE(location.has_value());
  EXPECT_EQ(location->anchor.open_file(location->relative).error().code, Code::kOutsideRoot);
}

TEST_F(LocateTest, AFolderThatOnlyLooksLikeARepository) {
  dir_.write("models--org--name/x.safetensors", "x");
  const auto location = locate(dir_.path("models--org--name"), options());
  ASSERT_TRUE(location.has_value());
  EXPECT_EQ(location->relative, "");
  EXPECT_FALSE(location->in_hub_cache);
}

TEST_F(LocateTest, APathThatExistsComesBeforeTheCache) {
  make_repo("hub/models--org--name");
  dir_.mkdir("org/name");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(dir_.path());
  const auto location = locate("org/name", options({{"HF_HUB_CACHE", dir_.path("hub")}}));
  std::filesystem::current_path(before);
  ASSERT_TRUE(location.has_value());
  EXPECT_EQ(location->anchor.path(), dir_.path("org/name"));
}

TEST(ProcessEnvironment, AnEmptyVariableIsNotSet) {
  ASSERT_EQ(::setenv("LADING_TEST_VARIABLE", "", 1), 0);
  EXPECT_EQ(process_environment()("LADING_TEST_VARIABLE"), std::nullopt);
  ASSERT_EQ(::setenv("LADING_TEST_VARIABLE", "x", 1), 0);
  EXPECT_EQ(process_environment()("LADING_TEST_VARIABLE"), "x");
  ASSERT_EQ(::unsetenv("LADING_TEST_VARIABLE"), 0);
  EXPECT_EQ(process_environment()("LADING_TEST_VARIABLE"), std::nullopt);
}

}  // namespace
}  // namespace lading::source
