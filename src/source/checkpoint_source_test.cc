#include "source/checkpoint_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <set>
#include <string>

#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace lading::source {
namespace {

using test::one_tensor_file;
using ::testing::HasSubstr;

class CheckpointSourceTest : public ::testing::Test {
 protected:
  CheckpointSourceTest() {
    options_.locate.environment = [](const std::string&) { return std::nullopt; };
  }

  Result<CheckpointSource, Errors> open(std::string_view relative = "") const {
    return CheckpointSource::open(dir_.path(relative), options_);
  }

  Errors errors_of(std::string_view relative = "") const {
    auto source = open(relative);
    return source ? Errors() : std::move(source).error();
  }

  Code code_of(std::string_view relative = "") const {
    const Errors errors = errors_of(relative);
    EXPECT_EQ(errors.size(), 1U);
    return errors.empty() ? Code::kInternal : errors.front().code;
  }

  void write_sharded() const {
    dir_.write("model-1.safetensors", one_tensor_file("a", "AAAA"));
    dir_.write("model-2.safetensors", one_tensor_file("b", "BB"));
    dir_.write("model.safetensors.index.json", kIndex);
  }

  static constexpr std::string_view kIndex =
      R"({"metadata":{"total_size":6},"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}})";

  test::TempDir dir_;
  OpenOptions options_;
};

TEST_F(CheckpointSourceTest, OneFile) {
  dir_.write("x.safetensors", one_tensor_file("t", "data"));
  for (const char* path : {"", "x.safetensors"}) {
    const auto source = open(path);
    ASSERT_TRUE(source.has_value()) << source.error().front().text();
    ASSERT_EQ(source->shards().size(), 1U);
    EXPECT_EQ(source->shards()[0].relative, "x.safetensors");
    EXPECT_EQ(source->shards()[0].resolved, "x.safetensors");
    EXPECT_FALSE(source->index().has_value());
    EXPECT_TRUE(source->warnings().empty());
    const auto* tensor = source->catalog().find("t");
    ASSERT_NE(tensor, nullptr);
    const auto file = source->open_file(source->shards()[0]);
    ASSERT_TRUE(file.has_value());
    std::string data(tensor->bytes.size_bytes(), '?');
    ASSERT_TRUE(file->read_exact(tensor->bytes.begin, data).has_value());
    EXPECT_EQ(data, "data") << "the range is in the file";
  }
}

TEST_F(CheckpointSourceTest, Sharded) {
  write_sharded();
  for (const char* path : {"", "model.safetensors.index.json"}) {
    const auto source = open(path);
    ASSERT_TRUE(source.has_value()) << source.error().front().text();
    ASSERT_TRUE(source->index().has_value());
    EXPECT_EQ(source->index()->relative, "model.safetensors.index.json");
    ASSERT_EQ(source->shards().size(), 2U);
    ASSERT_EQ(source->catalog().files.size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(source->shards()[i].relative, source->catalog().files[i].name);
    EXPECT_EQ(source->catalog().tensor_bytes(), 6U);
    EXPECT_TRUE(source->warnings().empty());
  }
}

TEST_F(CheckpointSourceTest, ShardsMayLieInFolders) {
  dir_.write("sub/model.safetensors.index.json", R"({"weight_map":{"a":"deep/s.safetensors"}})");
  dir_.write("sub/deep/s.safetensors", one_tensor_file("a", "AAAA"));
  const auto source = open("sub");
  ASSERT_TRUE(source.has_value()) << source.error().front().text();
  EXPECT_EQ(source->catalog().files[0].name, "deep/s.safetensors");
}

TEST_F(CheckpointSourceTest, ChoiceInADirectory) {
  EXPECT_EQ(code_of(), Code::kNotACheckpoint);
  dir_.write("pytorch_model.bin", "pickle");
  EXPECT_EQ(code_of(), Code::kNotACheckpoint);
  dir_.write("x.safetensors", one_tensor_file("x", "x"));
  EXPECT_EQ(open()->shards()[0].relative, "x.safetensors");
  dir_.write("y.safetensors", one_tensor_file("y", "y"));
  EXPECT_EQ(code_of(), Code::kAmbiguousCheckpoint);
  dir_.write("model.safetensors", one_tensor_file("m", "m"));
  EXPECT_EQ(open()->shards()[0].relative, "model.safetensors");
  EXPECT_EQ(open()->warnings().size(), 2U) << "x and y are strays";
  dir_.write("z.safetensors.index.json", R"({"weight_map":{"x":"x.safetensors"}})");
  EXPECT_EQ(open()->index()->relative, "z.safetensors.index.json");
  dir_.write("y.safetensors.index.json", R"({"weight_map":{"y":"y.safetensors"}})");
  EXPECT_EQ(code_of(), Code::kAmbiguousCheckpoint);
  dir_.write("model.safetensors.index.json", R"({"weight_map":{"m":"model.safetensors"}})");
  EXPECT_EQ(open()->index()->relative, "model.safetensors.index.json");
}

TEST_F(CheckpointSourceTest, ForeignFilesAreNamedInEveryShardAndInTheIndex) {
  write_sharded();
  dir_.write("model-1.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n");
  dir_.write("model-2.safetensors", "<!DOCTYPE html><html>Log in</html>");
  const Errors errors = errors_of();
  ASSERT_EQ(errors.size(), 2U);
  for (const Error& error : errors) EXPECT_EQ(error.code, Code::kNotACheckpoint);
  EXPECT_THAT(errors.list()[0].text(), HasSubstr("git lfs pull"));
  EXPECT_THAT(errors.list()[1].text(), HasSubstr("web page"));
  dir_.write("model.safetensors.index.json", "<html>Log in</html>");
  EXPECT_THAT(errors_of().front().text(), HasSubstr("web page"));
}

TEST_F(CheckpointSourceTest, ForeignFilesAreRecognisedWhateverTheirSize) {
  for (const std::size_t size : {4U, 5U, 8U, 9U, 511U, 512U, 513U, 5000U}) {
    std::string bytes = "GGUF";
    bytes.resize(size, '\x7f');
    dir_.write("x.safetensors", bytes);
    EXPECT_THAT(errors_of().front().text(), HasSubstr("GGUF")) << size;
  }
}

TEST_F(CheckpointSourceTest, ForeignDirectoriesAreNamed) {
  dir_.write(".metadata", "x");
  dir_.write("__0_0.distcp", "x");
  EXPECT_THAT(errors_of().front().text(), HasSubstr("dcp_to_torch"));
}

TEST_F(CheckpointSourceTest, Fault21_StrayShardIsNoted) {
  write_sharded();
  dir_.write("old.safetensors", "not even a safetensors file");
  const auto source = open();
  ASSERT_TRUE(source.has_value());
  ASSERT_EQ(source->warnings().size(), 1U);
  EXPECT_EQ(source->warnings().front().code, Code::kStrayShard);
  EXPECT_EQ(source->warnings().front().file, dir_.path("old.safetensors"));
  EXPECT_EQ(source->catalog().tensors.size(), 2U);
}

TEST_F(CheckpointSourceTest, Fault19_S5_EveryMissingShardIsListed) {
  dir_.write("model.safetensors.index.json",
             R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors","c":"2.safetensors","d":"3.safetensors"}})");
  dir_.write("3.safetensors", one_tensor_file("d", "D"));
  const Errors errors = errors_of();
  ASSERT_EQ(errors.size(), 2U);
  for (const Error& error : errors) {
    EXPECT_EQ(error.code, Code::kIndexMissingShard);
    EXPECT_EQ(error.rule, "S5");
    EXPECT_EQ(error.file, dir_.path("model.safetensors.index.json"));
  }
  EXPECT_EQ(errors.list()[0].tensor, "a");
  EXPECT_EQ(errors.list()[1].tensor, "b");
  EXPECT_THAT(errors.list()[1].text(), HasSubstr("2 tensor"));
}

TEST_F(CheckpointSourceTest, FaultsOfAllShardsAreListedTogether) {
  write_sharded();
  dir_.write("model-1.safetensors", "short");
  dir_.write("model-2.safetensors", one_tensor_file("b", "BB") + "trailing");
  std::set<std::pair<std::string, Code>> found;
  for (const Error& error : errors_of()) found.emplace(error.file, error.code);
  EXPECT_EQ(found, (std::set<std::pair<std::string, Code>>{{dir_.path("model-1.safetensors"), Code::kHeaderTruncated},
                                                           {dir_.path("model-2.safetensors"), Code::kTrailingBytes}}));
}

TEST_F(CheckpointSourceTest, S5_ABrokenShardDoesNotHideTheFaultsOfTheOthers) {
  write_sharded();
  dir_.write("model-1.safetensors", "short");
  dir_.write("model-2.safetensors", one_tensor_file("other", "BB"));
  std::set<Code> found;
  for (const Error& error : errors_of()) found.insert(error.code);
  EXPECT_EQ(found, (std::set<Code>{Code::kHeaderTruncated, Code::kIndexMissingTensor, Code::kIndexUnlistedTensor}));
}

TEST_F(CheckpointSourceTest, Fault13_TrailingBytesCanBeAllowed) {
  dir_.write("x.safetensors", one_tensor_file("t", "data") + "PK");
  EXPECT_EQ(code_of(), Code::kTrailingBytes);
  options_.trailing_bytes = checkpoint::TrailingBytes::kAllow;
  EXPECT_TRUE(open().has_value());
}

TEST_F(CheckpointSourceTest, Fault1_Fault2_LengthsThatLie) {
  const std::pair<std::string, Code> cases[] = {
      {"", Code::kHeaderTruncated},
      {"1234567", Code::kHeaderTruncated},
      {test::little_endian(3) + "{}", Code::kHeaderTruncated},
      {test::little_endian(~std::uint64_t{0}) + "{}", Code::kHeaderTooLarge},
      {test::little_endian(100'000'001) + "{}", Code::kHeaderTooLarge},
      {test::little_endian(0), Code::kJsonSyntax},
  };
  for (const auto& [content, code] : cases) {
    dir_.write("x.safetensors", content);
    EXPECT_EQ(code_of(), code) << ::testing::PrintToString(content);
  }
}

TEST_F(CheckpointSourceTest, Fault18_ShardThatIsALinkOutOrAFifo) {
  const test::TempDir outside;
  outside.write("s.safetensors", one_tensor_file("a", "AAAA"));
  dir_.write("model.safetensors.index.json", R"({"weight_map":{"a":"s.safetensors"}})");
  dir_.link("s.safetensors", outside.path("s.safetensors"));
  EXPECT_EQ(code_of(), Code::kOutsideRoot);
  std::filesystem::remove(dir_.path("s.safetensors"));
  ASSERT_EQ(::mkfifo(dir_.path("s.safetensors").c_str(), 0600), 0);
  EXPECT_EQ(code_of(), Code::kNotRegularFile);
  std::filesystem::remove(dir_.path("s.safetensors"));
  dir_.mkdir("s.safetensors");
  EXPECT_EQ(code_of(), Code::kNotRegularFile);
}

TEST_F(CheckpointSourceTest, Fault18_IndexThatIsAFifoDoesNotBlock) {
  ASSERT_EQ(::mkfifo(dir_.path("model.safetensors.index.json").c_str(), 0600), 0);
  EXPECT_EQ(code_of(), Code::kNotRegularFile);
}

TEST_F(CheckpointSourceTest, HubCacheResolvesToTheBlob) {
  const std::string commit(40, 'a');
  dir_.write("models--o--n/blobs/beef", one_tensor_file("t", "data"));
  dir_.write("models--o--n/refs/main", commit);
  dir_.link("models--o--n/snapshots/" + commit + "/model.safetensors", "../../blobs/beef");
  const auto source = open("models--o--n");
  ASSERT_TRUE(source.has_value()) << source.error().front().text();
  EXPECT_TRUE(source->in_hub_cache());
  EXPECT_EQ(source->shards()[0].relative, "snapshots/" + commit + "/model.safetensors");
  EXPECT_EQ(source->shards()[0].resolved, "blobs/beef");
  EXPECT_TRUE(source->open_file(source->shards()[0]).has_value());
}

TEST_F(CheckpointSourceTest, Fault38_OpenFileRefusesAReplacedFile) {
  const std::string content = one_tensor_file("t", "data");
  dir_.write("x.safetensors", content);
  const auto source = open();
  ASSERT_TRUE(source.has_value());
  ASSERT_TRUE(source->open_file(source->shards()[0]).has_value());
  dir_.write("new", content);  // the same bytes, but another file
  std::filesystem::rename(dir_.path("new"), dir_.path("x.safetensors"));
  const auto file = source->open_file(source->shards()[0]);
  ASSERT_FALSE(file.has_value());
  EXPECT_EQ(file.error().code, Code::kFileChanged);
  EXPECT_EQ(file.error().rule, "R45");
  EXPECT_EQ(file.error().file, dir_.path("x.safetensors"));
}

TEST_F(CheckpointSourceTest, Fault38_OpenFileRefusesARewrittenOrMissingFile) {
  dir_.write("x.safetensors", one_tensor_file("t", "data"));
  const auto source = open();
  ASSERT_TRUE(source.has_value());
  std::filesystem::resize_file(dir_.path("x.safetensors"), 20);
  EXPECT_EQ(source->open_file(source->shards()[0]).error().code, Code::kFileChanged);
  std::filesystem::remove(dir_.path("x.safetensors"));
  EXPECT_EQ(source->open_file(source->shards()[0]).error().code, Code::kNotFound);
}

TEST_F(CheckpointSourceTest, R45_AHeaderThatIsRewrittenUnderTheSameMtimeIsRefused) {
  const std::string path = dir_.write("x.safetensors", one_tensor_file("t", "data"));
  const auto source = open();
  ASSERT_TRUE(source.has_value());
  const auto mtime = std::filesystem::last_write_time(path);
  dir_.write("x.safetensors", one_tensor_file("u", "data"));
  std::filesystem::last_write_time(path, mtime);
  const auto file = source->open_file(source->shards()[0]);
  ASSERT_FALSE(file.has_value());
  EXPECT_EQ(file.error().code, Code::kFileChanged);
  EXPECT_EQ(file.error().rule, "R45");
}

TEST_F(CheckpointSourceTest, R45_AFileThatMayBeWrittenToIsDoubtful) {
  const std::string path = dir_.write("x.safetensors", one_tensor_file("t", "data"));
  const auto settled = open();
  ASSERT_TRUE(settled.has_value());
  EXPECT_FALSE(settled->open_file(settled->shards()[0])->is_doubtful()) << "however young it is";
  const std::fstream writer(path, std::ios::in | std::ios::out);
  const auto source = open();
  ASSERT_TRUE(source.has_value());
  EXPECT_TRUE(source->open_file(source->shards()[0])->is_doubtful());
}

}  // namespace
}  // namespace lading::source
